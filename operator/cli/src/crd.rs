//! `headgate crd`: print the CustomResourceDefinition.

use super::Output;
use headgate_controller::kubernetes::crd;

/// Prints the CRD.
///
/// # Errors
/// Returns no error that a user can cause.
pub fn run() -> anyhow::Result<Output> {
    Ok(Output::ok(crd::file()?))
}
