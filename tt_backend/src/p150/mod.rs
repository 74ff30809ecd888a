//! SuperPoint on a Tenstorrent p150.
//!
//! ```text
//! plane -> backend -> worker -> session: upload, resize, network, suppress | list | sample -> Detections
//!          (caller)   (thread)           (on the card)                      (host)  (on the card)
//! ```
//!
//! - `device`: the operations that everything is made of, as a trait
//! - `resize`, `network`, `suppress`, `sample`: the graph, written once against it, a stage a file
//! - `list`: the host's part between suppression and sampling
//! - `session`: stages recorded as traces, image sizes and radii that are prepared
//! - `worker`: the thread that owns the card, and deadlines
//! - `self_test`: whether the card moves data as the graph means it, and computes what the CPU does
//! - `backend`: planes in, detections out
//! - `ttnn`: the trait on TT-NN; `emulation`: the trait in tests
//! - `rehearsal`: the graph on TT-NN's mock card; `side_by_side`: on a card or a simulator beside the emulation
//!
//! No card has run any of this yet; ARCHITECTURE.md says what has been verified, and how.

mod backend;
mod device;
#[cfg(test)]
mod emulation;
mod list;
mod network;
pub mod rehearsal;
mod resize;
mod sample;
mod self_test;
mod session;
#[cfg(test)]
mod side_by_side;
mod suppress;
#[cfg(test)]
mod tests;
mod ttnn;
mod worker;

pub use backend::P150Backend;
pub(crate) use backend::library;
