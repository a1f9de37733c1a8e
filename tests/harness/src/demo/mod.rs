//! The demo: an overloaded backend behind a real Envoy, without Headgate and with it, and then live
//! edits of the policy.
//!
//! `scripts/demo` runs the demo. Each statement of the demo is a [`result::Claim`] with its
//! evidence. The demo fails if a claim wasn't observed.

pub mod chart;
mod claims;
mod filter_view;
pub mod palette;
pub mod picture;
pub mod report;
pub mod result;
pub mod run;
pub mod terminal;
pub mod timeline;
pub mod value_cut;
mod watch;
