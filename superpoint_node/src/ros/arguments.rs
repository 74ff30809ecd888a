//! The command line without what belongs to ROS.

/// What `superpoint_node --help` prints.
const USAGE: &str = "\
The SuperPoint node of superpoint_p150: subscribes to `image`, publishes `keypoints`.

Usage: superpoint_node [--help | --version] [--ros-args ROS_ARGUMENTS...]

Examples:
  ros2 run superpoint_p150 superpoint_node --ros-args -r image:=/camera/image_raw
  ros2 run superpoint_p150 superpoint_node --ros-args --params-file superpoint.yaml -p max_keypoints:=400
  ros2 launch superpoint_p150 superpoint.launch.py image:=/camera/image_raw

`ros2 param describe /superpoint NAME` explains a parameter; config/superpoint.yaml has all of them.
";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// To run the node.
    Run,
    /// To print this text and end.
    Print(String),
    /// Something unknown: this sentence says what.
    Unknown(String),
}

/// Reads the arguments behind the program's name. Everything between `--ros-args` and `--` is ROS's.
pub(super) fn read(arguments: impl IntoIterator<Item = String>) -> Request {
    let mut of_ros = false;
    for argument in arguments {
        match argument.as_str() {
            "--ros-args" => of_ros = true,
            "--" if of_ros => of_ros = false,
            _ if of_ros => {}
            "-h" | "--help" => return Request::Print(USAGE.to_owned()),
            "-V" | "--version" => return Request::Print(format!("superpoint_node {}\n", env!("CARGO_PKG_VERSION"))),
            _ => {
                let shown = argument.escape_debug();
                return Request::Unknown(format!("unknown argument {shown}; parameters and names follow --ros-args"));
            }
        }
    }
    Request::Run
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Request {
        read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_ros_says_is_left_to_ros() {
        for line in
            ["", "--ros-args", "--ros-args -r image:=/a --log-level info", "--ros-args --help", "--ros-args -p a:=1 --"]
        {
            assert_eq!(of(line), Request::Run, "{line}");
        }
    }

    #[test]
    fn the_rest_is_answered() {
        assert_eq!(of("--help"), Request::Print(USAGE.to_owned()));
        assert_eq!(of("--ros-args -p a:=1 -- -h"), Request::Print(USAGE.to_owned()));
        assert!(matches!(of("--version"), Request::Print(text) if text.contains(env!("CARGO_PKG_VERSION"))));
        assert!(matches!(of("max_keypoints:=3"), Request::Unknown(text) if text.contains("max_keypoints:=3")));
    }
}
