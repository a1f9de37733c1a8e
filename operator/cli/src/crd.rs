//! `headgate crd`: prints the CustomResourceDefinition.

use super::Output;
use headgate_controller::kubernetes::crd;

/// Prints the CRD.
///
/// # Errors
/// Returns an error only for a bug in the definition.
pub fn run() -> anyhow::Result<Output> {
    Ok(Output::ok(crd::file()?))
}
