//! `headgate crd`: print the CustomResourceDefinition.

use super::Output;
use crate::kubernetes::crd;

/// Prints it.
///
/// # Errors
/// None that a user can meet.
pub fn run() -> anyhow::Result<Output> {
    Ok(Output::ok(crd::file()?))
}
