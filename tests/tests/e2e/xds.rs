//! Tests of the ways in which a proxy can get its configuration, and of the visible signs of a
//! proxy that refuses its configuration.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{Backend, BackendConfig};
use headgate_tests::bootstrap::Bootstrap;
use headgate_tests::envoy::EnvoyProcess;
use headgate_tests::rig::Rig;
use headgate_tests::wait::{lock_machine, until};
use headgate_tests::{file, headgate, http, policy};

use crate::faults::assert_enforced;

fn backend() -> BackendConfig {
    BackendConfig::constant(100, Duration::from_millis(1))
}

#[test]
fn policies_arrive_and_follow_edits_before_and_after_a_restart_of_the_operator() -> Result<()> {
    let mut rig = Rig::builder(backend(), policy::queue_only(2, 10)).start()?;
    let status = rig.status()?;
    assert_eq!(status["proxies"][0]["target"], "Service/default/search");
    assert_eq!(
        status["policies"][0]["programmed"]["reason"], "Programmed",
        "{status:#}"
    );
    rig.get("/")?;
    assert_enforced(&rig, 2)?;

    rig.edit_policy(&policy::queue_only(3, 10))?;
    assert_enforced(&rig, 3)?;

    rig.restart_headgate()?;
    rig.wait_for_policy()?;
    rig.edit_policy(&policy::queue_only(4, 10))?;
    assert_enforced(&rig, 4)
}

#[test]
fn a_proxy_that_refuses_is_shown_with_its_reason_and_keeps_the_last_good_configuration()
-> Result<()> {
    let folder = tempfile::tempdir()?;
    let module = headgate::copy_tested_module(folder.path())?;
    let rig = Rig::builder(backend(), policy::queue_only(2, 10))
        .module(module.clone())
        .start()?;
    rig.get("/")?;
    assert_enforced(&rig, 2)?;

    // A well-formed module that is no filter. Only Envoy can detect this mistake.
    let no_filter: &[u8] = match headgate::is_native() {
        true => b"\x7fELF, and no tables",
        false => b"\0asm\x01\0\0\0",
    };
    file::replace(&module, no_filter)?;
    until("the refusal to be shown", || {
        let status = rig.status().map_err(|e| e.to_string())?;
        let message = status["proxies"][0]["nack"]["message"]
            .as_str()
            .unwrap_or_default();
        let programmed = &status["policies"][0]["programmed"];
        let shown =
            status["proxies"][0]["state"] == "Rejected" && programmed["reason"] == "EnvoyRejected";
        if shown && !message.is_empty() {
            Ok(())
        } else {
            Err(format!("{status:#}"))
        }
    })?;
    assert_enforced(&rig, 2)?;

    file::replace(&module, std::fs::read(headgate::tested_module())?)?;
    rig.wait_for_policy()?;
    rig.edit_policy(&policy::queue_only(3, 10))?;
    assert_enforced(&rig, 3)
}

/// Without a server, the slot reads a file that `headgate render` wrote, and follows the
/// replacement of this file.
#[test]
fn a_rendered_file_programs_a_slot_that_reads_files() -> Result<()> {
    assert_follows(|folder, rendered| file::replace(&folder.join(SLOT_FILE), rendered))
}

/// The kubelet updates a mounted ConfigMap by the replacement of a link to a folder. The file is a
/// link into that folder and stays as it is.
#[test]
fn a_mounted_config_map_programs_a_slot_that_reads_files() -> Result<()> {
    let mut versions = 0..;
    assert_follows(|folder, rendered| {
        let version = format!("..{}", versions.next().unwrap_or_default());
        std::fs::create_dir(folder.join(&version))?;
        std::fs::write(folder.join(&version).join(SLOT_FILE), rendered)?;
        symlink(&version, folder.join("..data_tmp"))?;
        std::fs::rename(folder.join("..data_tmp"), folder.join("..data"))?;
        let file = folder.join(SLOT_FILE);
        if file.is_symlink() {
            return Ok(());
        }
        Ok(symlink(Path::new("..data").join(SLOT_FILE), file)?)
    })
}

const SLOT_FILE: &str = "slot.yaml";

/// Checks that an Envoy runs each version of [`SLOT_FILE`]. `publish` writes the text of a version
/// into the folder.
fn assert_follows(mut publish: impl FnMut(&Path, &str) -> Result<()>) -> Result<()> {
    let _lock = lock_machine()?;
    let folder = tempfile::tempdir()?;
    let policies = tempfile::NamedTempFile::with_suffix(".yaml")?;
    let mut render = |slots: usize| -> Result<()> {
        std::fs::write(policies.path(), policy::queue_only(slots, 10).to_string())?;
        let module = headgate::tested_module().display().to_string();
        let (filter, option) = match headgate::is_native() {
            true => ("native", "--native"),
            false => ("wasm", "--wasm"),
        };
        let rendered = headgate::run_command(&[
            "render",
            &policies.path().display().to_string(),
            "--target",
            "envoy",
            "--filter",
            filter,
            option,
            &module,
        ])?;
        publish(folder.path(), &rendered)
    };
    render(2)?;
    let backend = Backend::start(&backend())?;
    let upstream = format!("--upstream={}", backend.addr());
    let slot = folder.path().join(SLOT_FILE).display().to_string();
    let arguments = [
        "bootstrap",
        "--listen=127.0.0.1:0",
        "--admin=127.0.0.1:0",
        &upstream,
        "--config-file",
        &slot,
    ];
    let bootstrap = Bootstrap::parse(&headgate::run_command(&arguments)?)?;
    let envoy = EnvoyProcess::start(&bootstrap, 2)?;
    let addr = envoy.listener(&bootstrap.listener_name()?)?;
    for slots in [2, 3] {
        render(slots)?;
        until("the file to be in force", || {
            http::get(addr, "/").map_err(|e| e.to_string())?;
            let now = envoy
                .stat(&format!(
                    "wasmcustom.headgate.policy.{}.slots",
                    policy::NAME
                ))
                .map_err(|e| e.to_string())?;
            if now == slots as u64 {
                Ok(())
            } else {
                Err(format!("{now} slots"))
            }
        })?;
    }
    Ok(())
}
