//! The source of policies: a folder of YAML files.
//!
//! [`folder`] makes the plan of a folder, a pure function of its content now and before. [`read`]
//! reads it, and [`dir`] follows its changes. A source never removes protection because of a
//! mistake: a file that becomes wrong keeps its last good policies, and the plan reports the
//! mistake.

pub mod dir;
pub mod folder;
pub mod read;
pub(crate) mod report;
