//! Where policies come from: a folder of YAML files.
//!
//! [`folder`] is what a folder means, a pure function of what was read now and before; [`read`] does the
//! reading, and [`dir`] follows changes. A source never takes away protection because of a mistake: a
//! file that becomes wrong keeps the policies that it last had right, and the plan says so.

pub mod dir;
pub mod folder;
pub mod read;
pub(crate) mod report;
