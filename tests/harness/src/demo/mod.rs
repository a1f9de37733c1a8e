//! The demo: an overloaded backend behind a real Envoy, without Headgate and with it, then a policy edited live.
//!
//! `scripts/demo` runs it. Whatever it claims is a [`result::Claim`] with the numbers that say so; it fails if one wasn't
//! seen.

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
mod watch;
