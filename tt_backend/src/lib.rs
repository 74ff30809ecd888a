//! SuperPoint backends.
