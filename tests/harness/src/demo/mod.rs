//! The demo: an overloaded backend behind a real Envoy, without Headgate and with it, then a policy
//! edited live.
//!
//! `scripts/demo` runs it. Each of its statements is a [`result::Claim`] with its evidence; the
//! demo fails if one wasn't observed.

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
