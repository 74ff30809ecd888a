//! The ROS 2 node; see `superpoint_node::ros`.

use std::process::ExitCode;

fn main() -> ExitCode {
    superpoint_node::ros::main()
}
