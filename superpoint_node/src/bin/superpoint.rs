//! The command line; see `superpoint_node::cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    superpoint_node::cli::run(std::env::args_os())
}
