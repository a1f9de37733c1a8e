//! System identification and controller design for backlog control (Chronos §4).
//!
//! Backlog control bounds the work that waits so that the mean service delay comes to a target. How much
//! a change of the bound moves the delay, and how fast, differs from service to service; gains that suit
//! one make another oscillate. So the relation is measured: [`identify`] fits Eq. 4 to a trace of delays
//! and backlogs, [`Plant`] is its transfer function (Eq. 6), and [`design`] finds the gains of the PI
//! controller (Eq. 7 and 8) that place the poles of the closed loop where overshoot and settling time
//! want them.
//!
//! Least squares are a Householder QR ([`qr`]) of a matrix of at most nine columns, and roots are found
//! by Aberth's method ([`polynomial`]), a few dozen lines each; a linear algebra library would be a
//! hundred times that for nothing more. What is left out: models with dead time or noise terms, and
//! orders above [`MAX_ORDER`].

pub mod design;
mod identify;
pub mod plant;
pub mod polynomial;
pub mod qr;

pub use design::{Design, DesignError, Gains, Goal, Law, Response, closed_loop, design, place};
pub use identify::{Fit, IdentifyError, MAX_ORDER, Segment, Transform, choose_order, identify};
pub use plant::Plant;
