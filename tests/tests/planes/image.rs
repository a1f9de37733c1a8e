//! The static binary of the image.

use std::process::Command;

use anyhow::{Context, Result};
use headgate_tests::kube::programs;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_images_program_says_where_its_missing_commands_are() -> Result<()> {
    let program = programs::repository().join("dist/image/headgate");
    for command in ["top", "simulate", "suggest", "sysid"] {
        for arguments in [
            &[command][..],
            &[command, "--help"],
            &[command, "a", "-o", "b"],
        ] {
            let output = Command::new(&program).args(arguments).output();
            let output = output.context("build it with scripts/build image-files")?;
            let said = text(&output.stderr);
            assert!(!output.status.success(), "{arguments:?}: {said}");
            assert!(
                said.contains("an archive of the release"),
                "{arguments:?}: {said}"
            );
        }
    }
    let help = Command::new(&program).arg("--help").output()?;
    let help = text(&help.stdout);
    assert!(help.contains("\n  status "), "{help}");
    assert!(!help.contains("\n  top "), "{help}");
    Ok(())
}
