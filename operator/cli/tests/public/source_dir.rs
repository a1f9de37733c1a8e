//! Tests of a followed folder: every kind of change to its files leads to a new plan.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use headgate_api::plan::Plan;
use headgate_controller::metrics::Metrics;
use headgate_controller::source::dir;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The time after which a test fails. It is long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

struct Watched {
    plans: watch::Receiver<Arc<Plan>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Watched {
    async fn start(dir: &Path) -> Self {
        let (sender, mut plans) = watch::channel(Arc::new(Plan::default()));
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(dir::watch(dir.to_owned(), sender, stopped, Metrics::new()));
        tokio::time::timeout(PATIENCE, plans.changed())
            .await
            .unwrap()
            .unwrap();
        Self { plans, stop, task }
    }

    /// Waits for a plan that satisfies `wanted`.
    async fn until(&mut self, what: &str, wanted: impl FnMut(&Arc<Plan>) -> bool) -> Arc<Plan> {
        let found = tokio::time::timeout(PATIENCE, self.plans.wait_for(wanted)).await;
        let found = found.ok().map(|plan| Arc::clone(&plan.unwrap()));
        found.unwrap_or_else(|| panic!("never came: {what}; last: {:#?}", self.plans.borrow()))
    }

    async fn stop(self) {
        self.stop.send(true).unwrap();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

fn policy(p50: &str) -> String {
    format!(
        "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: a}}\nspec:\n  \
         targetRefs: [{{kind: Service, name: a}}]\n  parallelism: {{total: 4}}\n  types: [{{name: \
         default, slo: {{p50: {p50}}}}}]\n"
    )
}

/// Returns the only enforced objective, ms.
fn objective(plan: &Plan) -> Option<u64> {
    let config = plan.workloads.values().next()?;
    Some(config.stages[0].types[0].slo[0].objective_us / 1000)
}

#[tokio::test]
async fn files_that_appear_change_break_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.yaml");
    let mut watched = Watched::start(dir.path()).await;
    assert_eq!(**watched.plans.borrow(), Plan::default());

    fs::write(&file, policy("18ms")).unwrap();
    watched
        .until("a new file", |p| objective(p) == Some(18))
        .await;
    fs::write(&file, policy("20ms")).unwrap();
    watched
        .until("a change in place", |p| objective(p) == Some(20))
        .await;

    let temporary = dir.path().join(".a.yaml.swp");
    fs::write(&temporary, policy("22ms")).unwrap();
    fs::rename(&temporary, &file).unwrap();
    watched
        .until("a file moved over it", |p| objective(p) == Some(22))
        .await;

    fs::write(&file, policy("never")).unwrap();
    let broken = watched
        .until("a mistake", |p| {
            p.policies.iter().any(|s| s.accepted.is_err())
        })
        .await;
    assert_eq!(objective(&broken), Some(22));
    fs::remove_file(&file).unwrap();
    let gone = watched.until("a deletion", |p| p.policies.is_empty()).await;
    assert_eq!(*gone, Plan::default());
    watched.stop().await;
}

#[tokio::test]
async fn a_mounted_config_map_is_swapped_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let version = |name: &str, p50: &str| {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("a.yaml"), policy(p50)).unwrap();
        symlink(name, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    version("..2026_01_01", "18ms");
    symlink("..data/a.yaml", at("a.yaml")).unwrap();
    let mut watched = Watched::start(dir.path()).await;
    watched
        .until("the first version", |p| objective(p) == Some(18))
        .await;
    version("..2026_01_02", "20ms");
    watched
        .until("the second version", |p| objective(p) == Some(20))
        .await;
    watched.stop().await;
}

#[tokio::test]
async fn a_folder_that_goes_keeps_its_policies_and_one_that_comes_is_followed() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("conf");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a.yaml"), policy("18ms")).unwrap();
    let mut watched = Watched::start(&dir).await;
    watched
        .until("the first version", |p| objective(p) == Some(18))
        .await;

    fs::rename(&dir, parent.path().join("old")).unwrap();
    let gone = watched
        .until("the folder's absence", |p| !p.problems.is_empty())
        .await;
    assert_eq!(objective(&gone), Some(18));

    let new = parent.path().join("new");
    fs::create_dir(&new).unwrap();
    fs::write(new.join("a.yaml"), policy("20ms")).unwrap();
    fs::rename(&new, &dir).unwrap();
    let back = watched
        .until("another folder", |p| objective(p) == Some(20))
        .await;
    assert_eq!(back.problems, []);
    // The new folder is watched as the old one was.
    fs::write(dir.join("a.yaml"), policy("22ms")).unwrap();
    watched
        .until("a change in it", |p| objective(p) == Some(22))
        .await;
    watched.stop().await;
}

#[tokio::test]
async fn a_file_without_policies_makes_no_plan() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), policy("18ms")).unwrap();
    let mut watched = Watched::start(dir.path()).await;
    watched
        .until("the first version", |p| objective(p) == Some(18))
        .await;
    fs::write(dir.path().join("notes.txt"), "x").unwrap();
    fs::write(dir.path().join("a.yaml"), policy("18ms") + "# a comment\n").unwrap();
    // Changes are processed in order, so the next plan is that of the next change to a policy.
    fs::write(dir.path().join("b.yaml"), "[").unwrap();
    tokio::time::timeout(PATIENCE, watched.plans.changed())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(watched.plans.borrow().problems.len(), 1);
    watched.stop().await;
}
