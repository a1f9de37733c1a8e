//! The source of policies in a folder of YAML files.
//!
//! [`folder`] computes the plan, a pure function of the folder's present and earlier content.
//! [`read`] reads the folder, and [`dir`] watches it. A source never removes protection because of
//! a mistake. If a file becomes invalid, its last good policies stay in force, and the plan reports
//! the mistake.

pub mod dir;
pub mod folder;
pub mod read;
pub(crate) mod report;
