//! System identification and controller design for backlog control (Chronos §4).
//!
//! Backlog control bounds the waiting work so that the mean service delay approaches a target. The
//! size and the speed of the delay's response to the bound differ between services. Gains that fit
//! one service make another service oscillate. So the relation of bound and delay is measured.
//! [`identify`] fits Eq. 4 to a trace of delays and backlogs. [`Plant`] is the transfer function of
//! the fit (Eq. 6). [`design`] finds the gains of the PI controller (Eq. 7 and 8) that place the
//! closed-loop poles as overshoot and settling time require.
//!
//! Least squares use a Householder QR ([`qr`]) of a matrix of at most nine columns. Roots use
//! Aberth's method ([`polynomial`]). Each method is a few dozen lines. A linear algebra library
//! would be a hundred times as long, without another benefit. This module leaves out models with
//! dead time or noise terms, and orders above [`MAX_ORDER`].
//!
//! A [`trace`] is read from a file of measurements or from an access log.

pub mod design;
mod identify;
mod log;
pub mod plant;
pub mod polynomial;
pub mod qr;
pub mod trace;

pub use design::{
    ControlLaw, Design, DesignError, Gains, Goal, Response, closed_loop, design, place,
};
pub use identify::{Fit, IdentifyError, MAX_ORDER, Segment, Transform, choose_order, identify};
pub use plant::Plant;
pub use polynomial::{roots_json, roots_text, significant};
