//! The command line; see `superpoint_node::cli`.

use std::process::ExitCode;

/// Level of TT-NN's log.
const TTNN_LOG: &str = "TT_LOGGER_LEVEL";

fn main() -> ExitCode {
    // TT-NN logs on standard output, which is for data. What goes wrong it also tells as errors.
    if std::env::var_os(TTNN_LOG).is_none() {
        // SAFETY: there is no other thread yet that could read the environment.
        unsafe { std::env::set_var(TTNN_LOG, "off") };
    }
    superpoint_node::cli::run(std::env::args_os())
}
