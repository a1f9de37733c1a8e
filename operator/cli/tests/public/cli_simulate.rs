//! Tests of `headgate simulate` as users run it: its output, its files and its exit codes.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::program::{command, headgate, text};

const POLICY: &str = "examples/quickstart/policy.yaml";

fn simulate(args: &[&str]) -> Output {
    headgate(&[&["simulate"], args].concat())
}

fn json(output: &Output) -> serde_json::Value {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Creates a file in a new folder. Returns the folder, which is removed when the value is dropped,
/// and the file's path.
fn file(content: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, content).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

const SMALL: [&str; 4] = ["--requests", "3000", "--seeds", "2"];

#[test]
fn a_scenario_has_the_papers_cells_beside_its_own() {
    let table = simulate(&[&["--scenario", "bouncer-table4"], &SMALL[..]].concat());
    assert_eq!(text(&table.stderr), "", "no bar where nobody looks");
    let lines: Vec<&str> = text(&table.stdout).lines().collect();
    assert_eq!(
        lines[0],
        "Bouncer, Table 4: rejections by allowance A at 1.5 times the full load"
    );
    let head = "parameter fast mediumfast mediumslow slow ALL";
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(lines.iter().any(|line| words(line) == head), "{lines:?}");
    let last = lines
        .iter()
        .find(|line| line.trim().starts_with("0.3 "))
        .unwrap();
    assert!(
        last.contains("(67.26)") && last.contains("(13.40)"),
        "{last}"
    );
    assert_eq!(table.status.code(), Some(0), "only --check fails");
}

#[test]
fn json_of_a_table_has_the_agreed_shape() {
    let rows = |name: &str| {
        let out = simulate(&[&["--scenario", name, "--json"], &SMALL[..]].concat());
        let mut out = json(&out);
        assert_eq!(out["scenario"], name);
        assert_eq!(out.as_object().unwrap().len(), 2, "scenario and rows");
        out["rows"].take()
    };
    let by_parameter = rows("bouncer-table5");
    assert_eq!(by_parameter.as_array().unwrap().len(), 10 * 5);
    let of_slow = by_parameter[48].as_object().unwrap();
    let mut names: Vec<&String> = of_slow.keys().collect();
    names.sort();
    assert_eq!(
        names,
        [
            "parameter",
            "rejected_pct",
            "rt_p50_ms",
            "rt_p90_ms",
            "strategy",
            "type",
            "utilization"
        ]
    );
    let row = by_parameter[49].as_object().unwrap();
    assert_eq!(row["strategy"], "Bouncer+HelpingTheUnderserved");
    assert_eq!(
        (&row["parameter"], &row["type"]),
        (&1.0.into(), &"ALL".into())
    );
    let rejected = row["rejected_pct"].as_f64().unwrap();
    assert!((5.0..25.0).contains(&rejected), "{rejected}");
}

#[test]
fn the_same_seed_prints_the_same_whatever_the_threads() {
    let out = |threads: &str, seed: &str| {
        let args = [
            "--scenario",
            "bouncer-table4",
            "--json",
            "--threads",
            threads,
            "--seed",
            seed,
        ];
        simulate(&[&args[..], &SMALL[..]].concat()).stdout
    };
    let once = out("1", "7");
    assert_eq!(once, out("3", "7"));
    assert_ne!(once, out("3", "8"));
}

#[test]
fn scenarios_are_listed_and_misspelt_names_get_a_suggestion() {
    let list = simulate(&["--scenario", "list"]);
    let first = text(&list.stdout).lines().next().unwrap();
    assert!(first.starts_with("bouncer-table3  "), "{first}");
    let (_, missing) = text(&list.stdout).split_once("\n\n").unwrap();
    let figures = missing.lines().find(|line| line.contains("Wisp, Figures"));
    assert!(
        figures.is_some_and(|line| line.contains("Bing")),
        "{missing}"
    );
    let wrong = simulate(&["--scenario", "bouncer-tabel3"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert_eq!(
        text(&wrong.stderr),
        "error: --scenario bouncer-tabel3: no such scenario; did you mean \"bouncer-table3\"?\n"
    );
}

#[test]
fn the_rules_of_the_policy_tell_the_types_of_a_workload() {
    let (_dir, workload) = file(
        "load: 1.5\ntypes:\n\
         - {name: quick, share: 9, request: {path: '/q/fast?n=1'}, serviceTime: {distribution: \
         Constant, mean: 5ms}}\n\
         - {name: other, request: {path: /elsewhere}, serviceTime: {distribution: Exponential, \
         mean: 90ms}}\n",
    );
    let args = ["--policy", POLICY, "--workload", &workload, "--json"];
    // With one seed in ten, a few percent of the requests of `quick` are refused.
    let size = ["--requests", "3000", "--seeds", "8"];
    let out = json(&simulate(&[&args[..], &size[..]].concat()));
    assert_eq!(out["policy"], "default/search");
    let kinds: Vec<&str> = out["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["quick", "other", "ALL"]);
    assert_eq!(out["rows"][0]["factor"], 1.5);
    // /elsewhere is of type `default`. With a mean of 90 ms, requests that wait can't meet the
    // objectives of this type.
    let rejected = |at: usize| out["rows"][at]["rejected_pct"].as_f64().unwrap();
    assert!(
        rejected(0) < 1.0 && rejected(1) > 40.0,
        "{} {}",
        rejected(0),
        rejected(1)
    );
}

#[test]
fn check_fails_when_a_type_misses_its_objective() {
    let trial = |mean: &str| {
        let (_dir, workload) = file(&format!(
            "load: 0.2\ntypes: [{{name: slow, serviceTime: {{distribution: Constant, \
             mean: {mean}}}}}]\n"
        ));
        let args = ["--policy", POLICY, "--workload", &workload, "--check"];
        simulate(&[&args[..], &SMALL[..]].concat())
    };
    let good = trial("150ms");
    assert_eq!((good.status.code(), text(&good.stderr)), (Some(0), ""));
    assert!(text(&good.stdout).ends_with("all 2 objectives are met\n"));
    // A request that finds an empty queue is admitted, although it can't meet the objective.
    let bad = trial("250ms");
    assert_eq!(bad.status.code(), Some(1));
    assert!(
        text(&bad.stdout).contains("the objective is 200"),
        "{}",
        text(&bad.stdout)
    );
    assert_eq!(text(&bad.stderr), "error: 1 of 2 objectives are met\n");
}

#[test]
fn brokers_refuse_queries_and_shards_the_batch_job_in_the_example_of_two_tiers() {
    let (policies, mesh) = (
        "examples/two-tiers/policies.yaml",
        "examples/two-tiers/mesh.yaml",
    );
    let out = json(&simulate(&["--policy", policies, "--mesh", mesh, "--json"]));
    let of = |workflow: &str, field: &str| {
        let rows = out["rows"].as_array().unwrap();
        let wanted =
            |row: &&serde_json::Value| row["variant"] == "with" && row["workflow"] == workflow;
        rows.iter().find(wanted).unwrap()[field].as_f64().unwrap()
    };
    assert!(of("path", "refused_rate") > 0.3, "{out}");
    assert!(
        of("path", "p50_ms") < 60.0 && of("node", "p50_ms") < 40.0,
        "{out}"
    );
    for workflow in ["node", "path"] {
        assert!(of(workflow, "failed_rate") < 0.01, "{out}");
    }
    assert!(of("batch", "refused_rate") > 0.4, "{out}");
}

#[test]
fn a_recorded_log_is_a_workload_by_itself_or_in_yaml() {
    let log = "examples/simulate/access.log";
    let direct = simulate(&["--policy", POLICY, "--workload", log, "--json"]);
    assert_eq!(
        text(&direct.stderr),
        "note: the policy has no fixed parallelism, so the simulated backend has 9 slots; \
         `parallelism` in a workload file changes this number\n\
         note: 1 line was skipped: bypasses the policy (line 600)\n"
    );
    let direct = json(&direct);
    assert_eq!(
        direct["rows"].as_array().unwrap().len(),
        5,
        "four types and ALL"
    );
    let yaml = "examples/simulate/recorded.yaml";
    let faster = json(&simulate(&[
        "--policy",
        POLICY,
        "--workload",
        yaml,
        "--json",
    ]));
    let all = |rows: &serde_json::Value, factor: f64| {
        let rows = rows.as_array().unwrap();
        let row = rows
            .iter()
            .find(|row| row["factor"] == factor && row["type"] == "ALL");
        row.unwrap()["rejected_pct"].as_f64().unwrap()
    };
    assert_eq!(all(&direct["rows"], 1.0), 0.0);
    assert_eq!(all(&faster["rows"], 1.0), 0.0);
    assert!(all(&faster["rows"], 10.0) > 5.0);
}

#[test]
fn a_recorded_log_may_come_through_a_pipe() {
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/simulate/access.log");
    let mut cat = Command::new("cat")
        .arg(&log)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let rows = |workload, stdin: Option<Stdio>| {
        let arguments = [
            "simulate",
            "--policy",
            POLICY,
            "--workload",
            workload,
            "--json",
        ];
        let mut command = command(env!("CARGO_BIN_EXE_headgate"), &arguments);
        command.stdin(stdin.unwrap_or(Stdio::null()));
        json(&command.output().unwrap())["rows"].clone()
    };
    let piped = rows("/dev/stdin", cat.stdout.take().map(Stdio::from));
    cat.wait().unwrap();
    assert_eq!(piped, rows(log.to_str().unwrap(), None));
}

#[test]
fn recorded_service_times_drive_a_model() {
    let log = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/simulate/access.log");
    let log = log.canonicalize().unwrap();
    let (_dir, workload) = file(&format!(
        "recorded: {{accessLog: {}}}\nload: 0.5\ntypes:\n\
         - {{name: slow, serviceTime: {{distribution: Recorded}}}}\n",
        log.display()
    ));
    let args = ["--policy", POLICY, "--workload", &workload, "--json"];
    let out = json(&simulate(&[&args[..], &SMALL[..]].concat()));
    let p50 = out["rows"][0]["rt_p50_ms"].as_f64().unwrap();
    // The recorded backend has a median of 50 ms.
    assert!((35.0..75.0).contains(&p50), "{p50}");
}

#[test]
fn files_that_are_no_workloads_get_one_line() {
    let error = |workload: &str| {
        let out = simulate(&["--policy", POLICY, "--workload", workload]);
        assert_eq!((out.status.code(), text(&out.stdout)), (Some(1), ""));
        text(&out.stderr).to_owned()
    };
    assert!(error("no-such-file").starts_with("error: no-such-file: can't be read: "));
    let (_dir, empty) = file("");
    assert_eq!(error(&empty), format!("{empty}: 0 documents; 1 workload\n"));
    let (_dir, excluded) = file(
        "[2026-01-05T10:00:00.250Z] \"GET /healthz HTTP/1.1\" 200 - 0 2 0 0 \"-\" \"-\" \"-\" \
         \"-\" \"-\"\n",
    );
    assert_eq!(
        error(&excluded),
        format!(
            "error: {excluded}: no request: 1 line was skipped: bypasses the policy (line 1)\n"
        )
    );
    let (_dir, missing) = file("recorded: {accessLog: gone.log}\n");
    let message = error(&missing);
    let begin = format!("{missing}:1:12: recorded.accessLog: ");
    assert!(message.starts_with(&begin), "{message}");
    assert!(message.contains("gone.log can't be read: "), "{message}");
    let (_dir, bad) =
        file("load: 0\ntypes: [{name: slow, serviceTime: {distribution: Constant, mean: 1ms}}]\n");
    assert_eq!(
        error(&bad),
        format!("{bad}:1:1: load: 0; above 0, at most 100\n")
    );
}

#[test]
fn mistakes_of_the_policy_are_those_of_validate() {
    let policy = "tests/bad-policies/slo-zero.yaml";
    let out = simulate(&[
        "--policy",
        policy,
        "--workload",
        "examples/simulate/workload.yaml",
    ]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(
        text(&out.stderr),
        "tests/bad-policies/slo-zero.yaml:19:11: spec.types[1].slo.p50: 0ms; 1ms to 1h\n"
    );
}

#[test]
fn a_page_has_tables_and_figures_and_needs_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    let out = simulate(
        &[
            &[
                "--scenario",
                "bouncer-fig6",
                "--html",
                page.to_str().unwrap(),
            ],
            &SMALL[..],
        ]
        .concat(),
    );
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(page.contains("<svg") && page.contains("MaxQueueWait") && page.contains("<table>"));
    assert!(!page.contains("<script") && !page.contains("http"));

    let nowhere = dir.path().join("no/such/folder/page.html");
    let args = [
        "--scenario",
        "bouncer-table4",
        "--html",
        nowhere.to_str().unwrap(),
    ];
    let out = simulate(&[&args[..], &SMALL[..]].concat());
    assert_eq!(out.status.code(), Some(1));
    assert!(
        text(&out.stderr).starts_with("error: --html "),
        "{}",
        text(&out.stderr)
    );
}

#[test]
fn the_command_line_asks_for_a_policy_with_a_workload_or_a_scenario() {
    for args in [
        &[][..],
        &["--policy", POLICY],
        &["--workload", "x"],
        &["--scenario", "bouncer-table3", "--policy", POLICY],
        &["--scenario", "bouncer-table3", "--seeds", "0"],
        &["--scenario", "bouncer-table3", "--quick", "--requests", "1"],
    ] {
        assert_eq!(simulate(args).status.code(), Some(2), "{args:?}");
    }
}

/// The rates of workflows come from services that call each other, but a trial has only one
/// service.
#[test]
fn a_policy_with_workflows_is_tried_without_them() {
    let (_dir, workload) = file(
        "load: 0.8\ntypes:\n- {name: default, share: 1, serviceTime: {distribution: Exponential, \
         mean: 10ms}}\n",
    );
    let policy = "examples/policies/workflows.yaml";
    let args = ["--policy", policy, "--workload", &workload, "--json"];
    let output = simulate(&[&args[..], &SMALL].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("note: the policy has workflows"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_mesh_shows_what_workflows_do_for_it() {
    let args = [
        "--policy",
        "examples/policies/workflows.yaml",
        "--mesh",
        "examples/simulate/mesh.yaml",
    ];
    let out = json(&simulate(&[&args[..], &["--json"]].concat()));
    let rows = out["rows"].as_array().unwrap();
    let value = |variant: &str, (kind, name): (&str, &str), field: &str| {
        let row = rows
            .iter()
            .find(|r| r["variant"] == variant && r[kind] == name)
            .unwrap_or_else(|| panic!("{variant} {name}: {rows:#?}"));
        row[field].as_f64().unwrap_or(f64::NAN)
    };
    let checkout = ("workflow", "checkout");
    let (before, after) = ("without", "with");
    // The load of `import` beyond the capacity of `stock` is refused at its entry, so it doesn't
    // reduce the throughput of the other workflows.
    assert!(value(before, checkout, "served_rps") < 60.0, "{rows:#?}");
    assert!(value(after, checkout, "served_rps") > 85.0, "{rows:#?}");
    let import = ("workflow", "import");
    assert!(value(after, import, "refused_rate") > 0.5, "{rows:#?}");
    assert!(value(after, import, "rate_rps") < 250.0, "{rows:#?}");
    let stock = ("service", "stock");
    assert!(value(after, stock, "utilization") > 0.7, "{rows:#?}");
    let again = json(&simulate(&[&args[..], &["--json"]].concat()));
    assert_eq!(again, out, "one seed, one result");
    let table = simulate(&args);
    let words = text(&table.stdout);
    for part in ["without the policy", "checkout", "slots held, %"] {
        assert!(words.contains(part), "{words}");
    }
}

/// Returns a policy for a Service that has only the type `default`.
fn policy_of(service: &str, max_queue: u32) -> String {
    format!(
        "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: {service}, \
         namespace: shop}}\n\
         spec:\n  targetRefs: [{{kind: Service, name: {service}}}]\n  parallelism: {{total: 1}}\n  \
         strategy: {{type: MaxQueueLength}}\n  queue: {{maxLength: {max_queue}, timeout: 10s}}\n  \
         types: [{{name: default}}]\n"
    )
}

#[test]
fn each_service_of_a_mesh_has_the_policy_that_targets_it() {
    let (_dir, mesh) = file(
        "services:\n- {name: front, parallelism: 100, operations: [{steps: [{call: {service: \
         back}}]}]}\n\
         - {name: back, parallelism: 1, operations: [{steps: [{compute: {distribution: Constant, \
         mean: 100ms}}]}]}\n\
         workflows: [{name: w, service: front, clients: [{rate: 15}]}]\nduration: 60s\n",
    );
    let run = |policies: &str| {
        let (_dir, policies) = file(policies);
        simulate(&["--policy", &policies, "--mesh", &mesh, "--json"])
    };
    let two = format!("{}---\n{}", policy_of("front", 800), policy_of("back", 0));
    let out = run(&two);
    let rows = json(&out);
    let row = |variant: &str, (kind, name): (&str, &str)| {
        let rows = rows["rows"].as_array().unwrap();
        let row = rows
            .iter()
            .find(|r| r["variant"] == variant && r[kind] == name);
        row.unwrap().clone()
    };
    assert_eq!(rows["policy"], "shop/front, shop/back");
    // The load is 15 requests/s, and `back` can serve 10. The policy of `back` has no queue, and
    // the policy of `front` refuses no request.
    let (front, back) = (("service", "front"), ("service", "back"));
    let refused = |variant, service| row(variant, service)["refused_rps"].as_f64().unwrap();
    assert_eq!(refused("with", front), 0.0);
    assert!(refused("with", back) > 4.0, "{rows:#}");
    assert_eq!(refused("without", back), 0.0);
    // With only one policy, the other service has no policy.
    let one = run(&policy_of("back", 0));
    let notes = text(&one.stderr);
    assert!(notes.contains("note: front has no policy: "), "{notes}");
    let mistake = |policies: &str, expected: &str| {
        let out = run(policies);
        assert_eq!(out.status.code(), Some(1));
        assert!(
            text(&out.stderr).contains(expected),
            "{}",
            text(&out.stderr)
        );
    };
    let elsewhere = format!(
        "{}---\n{}",
        policy_of("elsewhere", 1),
        policy_of("nowhere", 1)
    );
    mistake(
        &elsewhere,
        "no policy targets a Service of the mesh, such as front",
    );
    let twice = format!(
        "{}---\n{}",
        policy_of("back", 1),
        policy_of("back", 2).replace("name: back, namespace", "name: other, namespace")
    );
    mistake(
        &twice,
        "shop/back and shop/other both target the Service back",
    );
}

#[test]
fn mistakes_of_a_mesh_have_lines() {
    let (_dir, path) = file(
        "services:\n- name: a\n  parallelism: 0\n  operations:\n  - steps: [{call: {service: b}}]\n\
         workflows:\n- {name: w, service: a, clients: [{rate: fast}]}\nduration: 1\nworkflow: []\n",
    );
    let out = simulate(&["--policy", POLICY, "--mesh", &path]);
    assert_eq!(out.status.code(), Some(1));
    let found = text(&out.stderr).replace(&path, "mesh.yaml");
    for expected in [
        "mesh.yaml:3:",
        "services[0].parallelism: 0; 1 to",
        "services[0].operations[0].steps[0].call.service: \"b\" is not a service; one of a",
        "mesh.yaml:7:",
        "workflows[0].clients[0].rate",
        "mesh.yaml:8:",
        "mesh.yaml:9:",
    ] {
        assert!(found.contains(expected), "no {expected:?} in:\n{found}");
    }
    let both = simulate(&["--policy", POLICY, "--mesh", &path, "--workload", &path]);
    assert_eq!(both.status.code(), Some(2));
    let alone = simulate(&["--mesh", &path]);
    assert!(
        text(&alone.stderr).contains("--policy"),
        "{}",
        text(&alone.stderr)
    );
}
