//! What can go wrong.

use std::path::PathBuf;

/// Why there is no library to call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic loader does not find the library, or something that it needs.
    #[error("{path} cannot be loaded: {reason}")]
    Open {
        /// The file, or the name that was looked for.
        path: PathBuf,
        /// What the loader says.
        reason: String,
    },
    /// A file that is not this library.
    #[error("{path} is not a libttsp: {reason}")]
    Symbol {
        /// The file.
        path: PathBuf,
        /// Which symbol is missing.
        reason: String,
    },
    /// A library of another version of the ABI.
    #[error("{path} has version {found} of the interface, but version {expected} is needed")]
    Version {
        /// The file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Version of this crate.
        expected: u32,
    },
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {reason}")]
pub struct Error {
    /// The operation's name in TT-NN.
    pub operation: &'static str,
    /// What TT-NN, or the check before it, says.
    pub reason: String,
}
