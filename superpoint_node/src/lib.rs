//! SuperPoint node.
