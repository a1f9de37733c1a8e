//! Tests of the program's subcommands that work on files: their output and their exit codes.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write as _;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::program::{command, headgate, text};

/// Runs `headgate` with `input` as standard input.
fn fed(args: &[&str], input: &str) -> Output {
    let mut child = command(env!("CARGO_BIN_EXE_headgate"), args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn validate_reports_by_exit_code_and_one_line() {
    let good = headgate(&["validate", "examples/quickstart"]);
    assert_eq!(
        (text(&good.stdout), good.status.code()),
        ("ok: 1 policy\n", Some(0))
    );
    let examples = headgate(&["validate", "examples/policies"]);
    assert_eq!(
        (
            text(&examples.stdout),
            text(&examples.stderr),
            examples.status.code()
        ),
        ("ok: 15 policies\n", "", Some(0))
    );
    // Objects of other APIs are in the same file as policies (gateway) or in other files.
    for folder in ["gateway", "sidecar", "grpc", "istio", "envoy-gateway"] {
        let answer = headgate(&["validate", &format!("examples/{folder}")]);
        assert_eq!(answer.status.code(), Some(0), "{}", text(&answer.stdout));
    }

    let bad = headgate(&[
        "validate",
        "tests/bad-policies/slo-zero.yaml",
        "examples/quickstart/policy.yaml",
    ]);
    assert_eq!(bad.status.code(), Some(1));
    assert_eq!(
        text(&bad.stdout),
        "tests/bad-policies/slo-zero.yaml:19:11: spec.types[1].slo.p50: 0ms; 1ms to 1h\n"
    );
    assert_eq!(text(&bad.stderr), "error: 1 problem in 1 file\n");

    let missing = headgate(&["validate", "no-such-file.yaml"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).starts_with("error: no-such-file.yaml: can't be read: "));
}

#[test]
fn validate_writes_json_for_programs() {
    let bad = headgate(&[
        "validate",
        "--output",
        "json",
        "tests/bad-policies/slo-zero.yaml",
    ]);
    let report: serde_json::Value = serde_json::from_slice(&bad.stdout).unwrap();
    assert_eq!(report["ok"], false);
    assert_eq!(report["problems"][0]["line"], 19);
    assert_eq!(report["problems"][0]["field"], "spec.types[1].slo.p50");

    let good = headgate(&["validate", "-o", "json", "examples/quickstart/policy.yaml"]);
    let report: serde_json::Value = serde_json::from_slice(&good.stdout).unwrap();
    assert_eq!(report["ok"], true);
    assert_eq!(report["policies"][0]["name"], "default/search");
    assert_eq!(
        report["policies"][0]["targets"][0],
        "Service/default/search"
    );
}

#[test]
fn validate_warns_of_policies_that_apply_nowhere() {
    let both = headgate(&[
        "validate",
        "examples/quickstart/policy.yaml",
        "operator/cli/tests/policies/rival.yaml",
    ]);
    assert_eq!(both.status.code(), Some(0));
    assert_eq!(text(&both.stdout), "ok: 2 policies\n");
    assert_eq!(
        text(&both.stderr),
        "warning: operator/cli/tests/policies/rival.yaml: default/zz-rival does not apply to \
         Service/default/search, because default/search does (the oldest policy of a target \
         applies, then the first by name)\n"
    );
}

#[test]
fn explain_names_the_rule_and_why_not_those_before() {
    let slow = headgate(&[
        "explain",
        "examples/quickstart",
        "--method",
        "GET",
        "--path",
        "/q/slow?x=1",
        "-H",
        "k:v",
    ]);
    insta::assert_snapshot!(text(&slow.stdout));
    let health = headgate(&["explain", "examples/quickstart", "--path", "/healthz"]);
    assert!(
        text(&health.stdout).starts_with("type         none: the request bypasses admission\n")
    );
}

/// The proxies of `headgate bootstrap` and `headgate inject` normalize paths before rules are
/// compared.
#[test]
fn explain_warns_of_a_path_that_envoy_normalizes() {
    for (path, warning) in [
        (
            "//q",
            "warning: --path //q: Envoy normalizes it to /q; write that\n",
        ),
        (
            "/a/../q?x=1",
            "warning: --path /a/../q: Envoy normalizes it to /q; write that\n",
        ),
        (
            "/%71",
            "warning: --path /%71: Envoy normalizes it to /q; write that\n",
        ),
        ("/q/", ""),
        ("/q%2F?of=//", ""),
        ("*", ""),
    ] {
        let answer = headgate(&["explain", "examples/quickstart", "--path", path]);
        assert_eq!(
            (text(&answer.stderr), answer.status.code()),
            (warning, Some(0))
        );
    }
}

#[test]
fn explain_says_what_each_strategy_does() {
    for example in [
        "accept-fraction",
        "backlog-control",
        "bouncer",
        "class-admission",
        "fair-queue",
        "max-queue-length",
        "max-queue-wait",
        "priority",
        "response-time-controller",
        "smoothing",
        "urgency",
        "workflows",
    ] {
        let policy = format!("examples/policies/{example}.yaml");
        let request = ["--path", "/prices/history", "-H", "x-tenant: acme"];
        let answer = headgate(&[&["explain", &policy][..], &request].concat());
        insta::assert_snapshot!(format!("explain_{example}"), text(&answer.stdout));
    }
}

#[test]
fn the_urgency_of_standard_headers_is_a_class() {
    for (header, class) in [
        ("priority: u=0", "u0"),
        ("priority: u=1, i", "u1"),
        ("priority: i,u=2", "u2"),
        ("priority: i, u=3;x=1", "u3"),
        ("priority: a=\"b\", u=4;x, i", "u4"),
        ("priority: u=5\t, i", "u5"),
        ("priority: u=7", "u7"),
        ("priority: i", "u3"),
        ("priority: u=12", "u3"),
        ("priority: ru=7", "u3"),
        ("3gpp-sbi-message-priority: 0", "u0"),
        ("3gpp-sbi-message-priority: 7", "u1"),
        ("3gpp-sbi-message-priority: 8", "u2"),
        ("3gpp-sbi-message-priority: 11", "u2"),
        ("3gpp-sbi-message-priority: 15", "u3"),
        ("3gpp-sbi-message-priority: 16", "u4"),
        ("3gpp-sbi-message-priority: 23", "u5"),
        ("3gpp-sbi-message-priority: 27", "u6"),
        ("3gpp-sbi-message-priority: 31", "u7"),
    ] {
        let policy = "examples/policies/urgency.yaml";
        let answer = headgate(&["explain", policy, "--path", "/", "-H", header]);
        let answer = text(&answer.stdout);
        let class = format!("\nclass        {class}");
        assert!(answer.contains(&class), "{header}\n{answer}");
    }
}

#[test]
fn explain_prints_the_times_of_class_admission() {
    let policy = "examples/policies/class-admission.yaml";
    let answer = headgate(&["explain", policy, "--path", "/", "-H", "x-priority: high"]);
    let words: Vec<&str> = text(&answer.stdout).split_whitespace().collect();
    let times = "p99 holds for callers with 100 calls of the class or more in a window of 1s500ms, \
                 p90 for those with a tenth of them; a caller with a share of 0.1 in the class \
                 needs 2m15s without a miss to run all of its calls there again";
    assert!(words.join(" ").contains(times), "{}", text(&answer.stdout));
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(policy);
    let server = std::fs::read_to_string(path).unwrap();
    let server = server.replace("    # method: Centralized ", "    method: Centralized ");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    for (method, times) in [
        (
            "Misses",
            "5 misses, of all callers together, end the class until a period of 1s is over; p99 \
             allows as many misses of 500 calls/s in the class",
        ),
        (
            "Incast",
            "holds the mean of waits, in windows of 1s500ms; a caller with a share of 0.1 in the \
             class needs 2m15s without a miss to run all of its calls there again",
        ),
    ] {
        let policy = server.replace(
            "    # centralized: {method: Misses, misses: 5, period: 1s,",
            &format!("    centralized: {{method: {method},"),
        );
        std::fs::write(&file, policy).unwrap();
        let policy = file.to_str().unwrap();
        let answer = headgate(&["explain", policy, "--path", "/", "-H", "x-priority: high"]);
        let words: Vec<&str> = text(&answer.stdout).split_whitespace().collect();
        assert!(words.join(" ").contains(times), "{}", text(&answer.stdout));
    }
}

#[test]
fn explain_says_which_requests_are_retries() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    let policy = "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {name: a}\n\
                  spec:\n  targetRefs: [{kind: Service, name: a}]\n  \
                  retries: {header: X-Retry-Attempt, firstAttempt: 1}\n  \
                  strategy: {type: MaxQueueLength}\n  types: [{name: default}]\n";
    std::fs::write(&file, policy).unwrap();
    let answer = headgate(&["explain", file.to_str().unwrap(), "--path", "/"]);
    let answer = text(&answer.stdout);
    for words in [
        "  retries.header = X-Retry-Attempt\n",
        "  retries.firstAttempt = 1\n",
        "in addition to `x-envoy-attempt-count` and\n      `grpc-previous-rpc-attempts`",
    ] {
        assert!(answer.contains(words), "{words}\n{answer}");
    }
}

/// The CRD can't have these defaults, because they depend on other settings.
#[test]
fn explain_shows_defaults_that_depend_on_other_settings() {
    let explained = |strategy: &str, admission: &str| {
        let policy = format!(
            "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: a}}\n\
             spec:\n  targetRefs: [{{kind: Service, name: a}}]\n  {strategy}\n  types: \
             [{{name: default, slo: {{p50: 1s}}}}]\n  classes: [{{name: gold, matches: [{{path: \
             {{value: /a}}}}]}}, {{name: rest}}]\n  classAdmission: {{method: Centralized, \
             targets: {{gold: 10ms}}{admission}}}\n"
        );
        let answer = fed(&["explain", "-", "-o", "json"], &policy);
        let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
        move |field: &str| {
            let settings = answer["settings"].as_array().unwrap();
            let found = settings.iter().find(|s| s["field"] == field);
            found.map_or_else(|| answer[field].clone(), |s| s["value"].clone())
        }
    };
    let sliding = "strategy: {type: Bouncer, bouncer: {window: {type: Sliding}}}";
    let of = explained(sliding, "");
    assert_eq!(of("strategy.bouncer.window.step"), "100ms");
    assert_eq!(of("queue.discipline"), "Slack");
    assert_eq!(of("classAdmission.centralized.misses"), 5);
    assert_eq!(of("classAdmission.centralized.period"), "1s");
    assert_eq!(of("classAdmission.centralized.report"), "100ms");
    let of = explained(sliding, ", centralized: {period: 50ms}");
    assert_eq!(of("classAdmission.centralized.report"), "50ms");
    let cost =
        "strategy: {type: BacklogControl, backlogControl: {target: 1s, cost: {type: Header}}}";
    let of = explained(cost, ", centralized: {method: Incast}");
    assert_eq!(of("strategy.backlogControl.cost.header"), "x-headgate-cost");
    assert_eq!(of("queue.discipline"), "FIFO");
    assert_eq!(of("classAdmission.centralized.smoothing"), 0.5);
    assert!(of("classAdmission.centralized.misses").is_null());
    let late = "strategy: {type: ResponseTimeController, responseTimeController: {target: 2s}}";
    let of = explained(late, "");
    let control = "strategy.responseTimeController";
    assert_eq!(of(&format!("{control}.lowerClassDecrease")), 10.0);
    assert_eq!(of(&format!("{control}.lowerClassPatience")), 20);
    let target = "target: p90 of response times at 2s; warning: queue.timeout ends waits earlier, \
                  so set it above the target";
    assert_eq!(of("computed")[0], target);
}

/// The policies have every discipline, and types with and without objectives.
#[test]
fn explain_says_what_each_discipline_does() {
    let mut all = String::new();
    let mut explain = |queue: &str, request: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.yaml");
        let policy = format!(
            "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: a}}\n\
             spec:\n  targetRefs: [{{kind: Service, name: a}}]\n  parallelism: {{total: 4}}\n  \
             queue: {queue}\n  strategy: {{type: MaxQueueLength}}\n  types: [{{name: with, \
             matches: [{{path: {{value: /with}}}}], slo: {{p50: 10ms, p99.9: 2s}}}}, \
             {{name: default{}}}]\n  exclude: [{{path: {{value: /healthz}}}}]\n{}",
            if queue.contains("Slack") {
                ", slo: {p50: 1s}"
            } else {
                ""
            },
            if queue.contains("Priority") {
                "  classes: [{name: gold, matches: [{path: {value: /with}}]}, {name: rest}]\n"
            } else {
                ""
            }
        );
        std::fs::write(&file, policy).unwrap();
        let answer = headgate(&["explain", file.to_str().unwrap(), "--path", request]);
        assert_eq!(text(&answer.stderr), "");
        let lines = text(&answer.stdout).lines();
        let part: Vec<&str> = lines
            .skip_while(|line| !line.starts_with("  queue"))
            .take_while(|line| !line.starts_with("  strategy"))
            .collect();
        all += &format!("{queue} {request}\n{}\n\n", part.join("\n"));
    };
    for discipline in [
        "FIFO", "EDF", "LSTF", "SJF", "SRTF", "LASF", "DRR", "WFQ", "Priority", "Slack",
    ] {
        explain(&format!("{{discipline: {discipline}}}"), "/with");
    }
    for queue in [
        "{discipline: EDF, timeout: 5s}",
        "{discipline: DRR, drr: {weights: {with: 2, default: 0.5}, quantum: 5ms}}",
        "{discipline: WFQ, wfq: {weights: {with: 2, default: 0.5}}}",
    ] {
        explain(queue, "/without");
    }
    // No setting applies to a request that bypasses admission.
    explain("{discipline: EDF}", "/healthz");
    explain(
        "{discipline: DRR, drr: {by: Workflow, weights: {checkout: 4}}}",
        "/with",
    );
    explain("{mode: Observe}", "/with");
    explain("{maxLength: 0}", "/with");
    insta::assert_snapshot!(all);
}

#[test]
fn explain_shows_the_class() {
    let policy = "operator/cli/tests/policies/everything.yaml";
    let args = [
        "explain",
        policy,
        "--workload",
        "Service/shop/search",
        "-o",
        "json",
    ];
    let class = |request: &[&str]| {
        let answer = headgate(&[&args[..], request].concat());
        let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
        answer
    };
    let gold = class(&["-H", "X-Class: gold"]);
    assert_eq!(gold["class"]["name"], "gold");
    assert_eq!(gold["class"]["matched"], "gold: x-class = gold");
    let rest = class(&["-H", "X-Class: silver"]);
    assert_eq!(rest["class"]["name"], "rest");
    assert_eq!(rest["triedForClass"][0]["because"], "x-class is \"silver\"");
    let none = class(&["--path", "/healthz"]);
    assert_eq!(none["class"], serde_json::Value::Null);
}

#[test]
fn explain_needs_a_workload_where_there_is_a_choice() {
    let policy = "operator/cli/tests/policies/everything.yaml";
    let one = headgate(&["explain", policy, "examples/quickstart", "--path", "/a"]);
    assert_eq!(one.status.code(), Some(1));
    assert_eq!(
        text(&one.stderr),
        "error: policies differ by target; choose one with --workload: Service/default/search, \
         Service/shop/search, Gateway/shop/edge.shop, Gateway/shop/edge.shop/https, \
         HTTPRoute/shop/search, GRPCRoute/shop/search, \
         InferencePool/shop/llm, Pod/shop/app.kubernetes.io/name=search,canary=,tier=web\n"
    );
    let args = [
        "explain",
        policy,
        "--workload",
        "Service/shop/search",
        "-o",
        "json",
        "--path",
        "/a?q",
    ];
    let request = [
        "-H",
        "X-Kind: slow",
        "-H",
        "x-tenant: 7",
        "--route",
        "search-route",
    ];
    let answer = headgate(&[&args[..], &request[..]].concat());
    let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!(answer["type"], "default");
    assert_eq!(answer["tried"][1]["because"], "x-tenant is \"7\"");
    assert_eq!(answer["tried"][3]["because"], "path is \"/a\"");
    assert_eq!(
        answer["tried"][4]["because"],
        "not a gRPC request: content-type is absent, path is \"/a\""
    );
    assert_eq!(
        answer["objectives"],
        serde_json::json!([
            "p50 to the first byte within 18ms",
            "p99.9 to the first byte within 2s"
        ])
    );
}

#[test]
fn render_writes_what_envoy_reads_from_a_file() {
    let render = |format: &str| {
        let out = headgate(&[
            "render",
            "examples/quickstart",
            "--wasm",
            "/etc/headgate.wasm",
            "-o",
            format,
        ]);
        assert_eq!(out.status.code(), Some(0));
        assert!(
            text(&out.stderr).starts_with("warning: --wasm /etc/headgate.wasm: no such file here")
        );
        text(&out.stdout).to_owned()
    };
    let json: serde_json::Value = serde_json::from_str(&render("json")).unwrap();
    let yaml: serde_json::Value = serde_saphyr::from_str(&render("yaml")).unwrap();
    assert_eq!(json, yaml);
    let slot = &json["resources"][0];
    assert_eq!(slot["name"], "headgate");
    let plugin = &slot["typed_config"]["config"];
    assert_eq!(
        plugin["vm_config"]["code"]["local"]["filename"],
        "/etc/headgate.wasm"
    );
    let config = plugin["configuration"]["value"].as_str().unwrap();
    let config = headgate_core::config::FilterConfig::from_json(config.as_bytes()).unwrap();
    assert_eq!(config.stages[0].types.last().unwrap().name, "default");
}

#[test]
fn render_writes_a_native_filter_where_it_is_asked_for() {
    let render = |args: &[&str]| {
        let all = ["render", "examples/quickstart", "-o", "json"];
        headgate(&[&all[..], args].concat())
    };
    let native = render(&["--filter", "native", "--native", "/etc/headgate.so"]);
    assert_eq!(native.status.code(), Some(0));
    let warning = "warning: --native /etc/headgate.so: no such file here";
    assert!(text(&native.stderr).starts_with(warning));
    let json: serde_json::Value = serde_json::from_slice(&native.stdout).unwrap();
    let filter = &json["resources"][0]["typed_config"];
    let module = &filter["dynamic_module_config"];
    assert_eq!(module["module"]["local"]["filename"], "/etc/headgate.so");
    let config = filter["filter_config"]["value"].as_str().unwrap();
    let config = headgate_core::config::FilterConfig::from_json(config.as_bytes()).unwrap();
    assert_eq!(config.stages[0].types.last().unwrap().name, "default");

    for (args, message) in [
        (
            &["--filter", "lua"][..],
            "error: invalid value 'lua' for '--filter <KIND>'\n  [possible values: wasm, native]",
        ),
        (
            &["--filter", "native", "--native", "/etc/headgate.wasm"],
            "error: --native /etc/headgate.wasm: no native module",
        ),
        (
            &["--wasm", "/etc/headgate.so"],
            "error: --wasm /etc/headgate.so: a native module; name it with --native",
        ),
    ] {
        let refused = render(args);
        assert_ne!(refused.status.code(), Some(0), "{args:?}");
        let said = text(&refused.stderr);
        assert!(said.starts_with(message), "{said}");
    }
}

#[test]
fn bootstrap_asks_for_the_kind_of_filter_or_names_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (native, wasm) = (
        at("libheadgate.so", b"\x7fELF and the rest"),
        at("headgate.wasm", b"\0asm\x01\0\0\0"),
    );
    let installed = folder.path().join("modules");
    let install = ["--install-module", installed.to_str().unwrap()];
    let bootstrap = |args: &[&str]| {
        let all = ["bootstrap", "--upstream", "127.0.0.1:1"];
        headgate(&[&all[..], args].concat())
    };
    let metadata = |args: &[&str]| {
        let out = bootstrap(args);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        let yaml: serde_json::Value = serde_saphyr::from_str(text(&out.stdout)).unwrap();
        yaml["node"]["metadata"].clone()
    };
    assert_eq!(metadata(&[]), serde_json::Value::Null);
    assert_eq!(metadata(&["--filter", "wasm"]), serde_json::Value::Null);
    let mut asked = serde_json::json!({"headgate.dev/filter": "native"});
    if cfg!(target_os = "linux") {
        asked["headgate.dev/architecture"] = std::env::consts::ARCH.into();
    }
    assert_eq!(metadata(&["--filter", "native"]), asked);
    let yaml = bootstrap(&["--filter", "native"]).stdout;
    assert!(text(&yaml).contains("dynamic_modules_strip_custom_stat_prefix: true"));
    let files = ["--wasm", &wasm, "--native", &native];
    let named = metadata(&[&install[..], &["--filter", "native"], &files].concat());
    for (key, extension) in [("module", ".wasm"), ("native-module", ".so")] {
        let path = named[format!("headgate.dev/{key}")].as_str().unwrap();
        assert!(
            path.ends_with(extension) && std::fs::exists(path).unwrap(),
            "{named}"
        );
    }
    let mut rest = named;
    rest.as_object_mut()
        .unwrap()
        .retain(|key, _| !key.ends_with("module"));
    asked["headgate.dev/module-version"] = env!("CARGO_PKG_VERSION").into();
    assert_eq!(rest, asked);

    for (args, message) in [
        (
            vec!["--request-timeout", "0s"],
            "error: invalid value '0s' for '--request-timeout <DURATION>': must be more than 0; \
             leave the argument out for no limit",
        ),
        (
            vec!["--filter", "lua"],
            "error: invalid value 'lua' for '--filter <KIND>'\n  [possible values: wasm, native]",
        ),
        (
            [
                &install[..],
                &["--filter", "native", "--wasm", &wasm, "--native", &wasm],
            ]
            .concat(),
            "no native module, which is a shared object",
        ),
        (
            [&install[..], &["--wasm", &native]].concat(),
            "a native module; name it with --native",
        ),
    ] {
        let refused = bootstrap(&args);
        assert_ne!(refused.status.code(), Some(0), "{args:?}");
        let said = text(&refused.stderr);
        assert!(said.contains(message), "{said}");
    }
}

/// Renders a policy and returns the rendered stage.
fn rendered(args: &[&str]) -> headgate_core::config::StageConfig {
    let out = headgate(&[&["render", "-o", "json"], args].concat());
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let plugin = &json["resources"][0]["typed_config"]["config"];
    let config = plugin["configuration"]["value"].as_str().unwrap();
    let config = headgate_core::config::FilterConfig::from_json(config.as_bytes()).unwrap();
    config.stages.into_iter().next().unwrap()
}

#[test]
fn render_gives_each_of_several_proxies_its_part() {
    let folder = tempfile::tempdir().unwrap();
    let slots = |parallelism: &str, args: &[&str]| {
        let file = folder.path().join("policy.yaml");
        let policy = format!(
            "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: a}}\n\
             spec:\n  targetRefs: [{{kind: Service, name: a}}]\n  parallelism: {parallelism}\n  \
             types: [{{name: default, slo: {{p50: 1s}}}}]\n"
        );
        std::fs::write(&file, policy).unwrap();
        rendered(&[&[file.to_str().unwrap()], args].concat()).parallelism
    };
    let scale = ["--endpoints", "5", "--proxies", "2"];
    assert_eq!(slots("{total: 21}", &[]), 21);
    assert_eq!(slots("{total: 21}", &scale), 10);
    assert_eq!(slots("{perEndpoint: 8}", &[]), 8);
    assert_eq!(slots("{perEndpoint: 8}", &scale), 20);
    let none = headgate(&["render", "examples/quickstart", "--proxies", "0"]);
    assert_eq!(none.status.code(), Some(2));
}

#[test]
fn pods_are_a_workload_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    let yaml = "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {name: a, \
                namespace: shop}\nspec:\n  targetRefs:\n  - {kind: Pod, matchLabels: {tier: web, \
                app.kubernetes.io/name: search}}\n  - {kind: Service, name: a}\n  parallelism: \
                {total: 4}\n  types: [{name: default, slo: {p50: 1s}}]\n";
    std::fs::write(&policy, yaml).unwrap();
    let policy = policy.to_str().unwrap();
    let report = headgate(&["validate", "-o", "json", policy]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let pods = "Pod/shop/app.kubernetes.io/name=search,tier=web";
    assert_eq!(report["policies"][0]["targets"][0], pods);
    for workload in [
        pods,
        "Pod/shop/tier=web,app.kubernetes.io/name=search",
        "Service/shop/a",
    ] {
        assert_eq!(rendered(&[policy, "--workload", workload]).policy, "shop/a");
        let explained = headgate(&["explain", policy, "--workload", workload, "--path", "/a"]);
        assert_eq!(
            explained.status.code(),
            Some(0),
            "{}",
            text(&explained.stderr)
        );
    }
    let other = headgate(&["render", policy, "--workload", "Pod/shop/app=ads"]);
    assert_eq!(
        text(&other.stderr),
        format!(
            "error: --workload Pod/shop/app=ads: no policy targets it; policies target \
             Service/shop/a, {pods}\n"
        )
    );
}

#[test]
fn render_refuses_what_validate_refuses() {
    let bad = headgate(&["render", "tests/bad-policies/slo-zero.yaml"]);
    assert_eq!((bad.status.code(), text(&bad.stdout)), (Some(1), ""));
    assert!(text(&bad.stderr).contains("spec.types[1].slo.p50: 0ms"));
}

#[test]
fn explain_says_how_a_workflow_was_found() {
    let policy = "operator/cli/tests/policies/everything.yaml";
    let explain = |request: &[&str]| {
        let args = [
            "explain",
            policy,
            "--workload",
            "Service/shop/search",
            "-o",
            "json",
        ];
        let answer = headgate(&[&args[..], request].concat());
        let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
        let workflow = &answer["workflow"];
        let text = |field: &str| workflow[field].as_str().unwrap_or_default().to_owned();
        (text("name"), text("foundBy"))
    };
    let found = |name: &str, by: &str| (name.to_owned(), by.to_owned());
    let baggage = [
        "-H",
        "baggage: user=1",
        "-H",
        "baggage: k=v, workflow=check%20out;p",
        "-H",
        "x-tenant: acme",
    ];
    assert_eq!(
        explain(&baggage),
        found("check out", "found by baggage member workflow")
    );
    assert_eq!(
        explain(&["-H", "X-Tenant: acme"]),
        found("acme", "found by header x-tenant")
    );
    let claim = "envoy.filters.http.jwt_authn/claims/tenant=acme";
    assert_eq!(
        explain(&["--metadata", claim]),
        found(
            "acme",
            "found by metadata envoy.filters.http.jwt_authn/claims/tenant"
        )
    );
    assert_eq!(explain(&[]), found("default", "found by its type"));
    assert_eq!(explain(&["--path", "/healthz"]), found("", ""));
    let wrong = headgate(&["explain", policy, "--metadata", "tenant"]);
    assert!(text(&wrong.stderr).contains("NAMESPACE/KEY=VALUE"));
}

#[test]
fn render_writes_the_outbound_slot_too() {
    let render = |policy: &str, name: &[&str]| {
        let args = [
            "render",
            policy,
            "--outbound",
            "-o",
            "json",
            "--wasm",
            "Cargo.toml",
        ];
        let out = headgate(&[&args[..], name].concat());
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let resource = &json["resources"][0];
        let config = &resource["typed_config"]["config"]["configuration"]["value"];
        let config = config.as_str().unwrap().as_bytes();
        let config = headgate_core::config::FilterConfig::from_json(config).unwrap();
        assert!(config.stages.is_empty());
        let name = resource["name"].as_str().unwrap().to_owned();
        (name, config.outbound, text(&out.stderr).to_owned())
    };
    let (name, outbound, notes) = render("examples/policies/workflows.yaml", &[]);
    assert_eq!((name.as_str(), notes.as_str()), ("headgate-outbound", ""));
    let outbound = outbound.unwrap();
    assert_eq!(outbound.policy, "default/search");
    assert_eq!(outbound.services["outbound|80||extent-*"], "extent");
    let (name, outbound, notes) = render("examples/quickstart", &["--name", "headgate-outbound-b"]);
    assert_eq!((name.as_str(), outbound), ("headgate-outbound-b", None));
    assert_eq!(
        notes,
        "warning: no workflows apply to Service/default/search; its outbound slot does nothing\n"
    );
}

#[test]
fn validate_warns_of_what_is_seldom_meant() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    let policy = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies/workflows.yaml"),
    );
    let policy = policy.unwrap();
    let warned = |policy: &str| {
        std::fs::write(&file, policy).unwrap();
        let answer = headgate(&["validate", file.to_str().unwrap()]);
        assert_eq!(answer.status.code(), Some(0));
        text(&answer.stderr).replace(&format!("warning: {}: ", file.display()), "")
    };
    assert_eq!(warned(&policy), "");
    assert_eq!(
        warned(&policy.replace("drr: {by: Workflow}", "drr: {by: Type}")),
        "default/search: spec.queue.discipline: DRR by Type, which ignores workflows: one with a \
         steady rate fills the queue, and the bursts of others wait behind it; with DRR by \
         Workflow they take turns\n"
    );
    assert_eq!(
        warned(&policy.replace("    peers:", "    edge: true\n    peers:")),
        "default/search: spec.workflows.peers: given with edge, where no caller is trusted; peers \
         are then the services that this one calls\n"
    );
    let policy = include_str!("../../../../examples/policies/class-admission.yaml");
    assert_eq!(warned(policy), "");
    assert_eq!(
        warned(&policy.replace("high: 15ms", "high: 5ms")),
        "default/stock: spec.classAdmission.targets.high: its windows (500ms) are so short that \
         the target holds at p99 only for callers with at least 200 calls/s in the class; give a \
         longer target, or more decrease or less increase in classAdmission.distributed\n"
    );
    let inside = policy.split("    peers:").next().unwrap();
    let of_edge = warned(&format!(
        "{inside}  workflows: {{edge: true, identifyBy: [{{type: Type}}]}}\n"
    ));
    assert!(
        of_edge.contains(
            "default/stock: spec.classAdmission.targets: given with workflows.edge, where no \
             caller is trusted: responses don't report their times, so callers notice only \
             refusals and timeouts, and the service ignores the class of a downgraded call\n"
        ),
        "{of_edge}"
    );
    let rates = include_str!("../../../../examples/policies/response-time-controller.yaml");
    assert_eq!(warned(rates), "");
    // By default, the first decrease of the rate starts at the throughput, so a large `maxRate`
    // causes no warning.
    assert_eq!(
        warned(&rates.replace("maxRate: 200 ", "maxRate: 2000 ")),
        ""
    );
    assert_eq!(
        warned(&rates.replace("maxRate: 200 ", "maxRate: 2000\n      increase: 2 ")),
        "default/mail: spec.strategy.responseTimeController.maxRate: 2000 requests/s, the rate at \
         first, are more than 20 slots (of an endpoint, with perEndpoint) serve if a request takes more \
         than 10ms, where the target is 500ms; the queue then grows until response times have lowered the rate; give about what \
         the service can serve\n"
    );
    let fraction = include_str!("../../../../examples/policies/accept-fraction.yaml");
    assert_eq!(warned(fraction), "");
    let units = "default/reports: spec.strategy.acceptFraction: no effect while parallelism is \
                 found, because slots have no limit then; give processingUnits, or parallelism as \
                 total or perEndpoint\n";
    assert_eq!(warned(&fraction.replace("total: 20", "auto: {}")), units);
    let waits = include_str!("../../../../examples/policies/max-queue-wait.yaml");
    assert_eq!(warned(waits), "");
    assert_eq!(
        warned(&waits.replace("limit: 12ms", "limit: 2s")),
        "default/prices: spec.strategy.maxQueueWait.limit: 2s, above queue.timeout (1s): requests \
         that would wait longer are admitted, and refused after the timeout; give a limit below \
         it, or a longer timeout\n"
    );
    assert_eq!(
        warned(&waits.replace("history: 5ms", "history: 2s")),
        "default/prices: spec.strategy.maxQueueWait.limits.history: 2s, above queue.timeout (1s): \
         requests that would wait longer are admitted, and refused after the timeout; give a limit \
         below it, or a longer timeout\n"
    );
    let bouncer = fraction.replace("type: AcceptFraction", "type: Bouncer");
    let bouncer = bouncer + "    slo: {p50: 100ms}\n";
    assert_eq!(warned(&bouncer), "");
    // With the method Centralized, class admission follows misses only while the server doesn't
    // respond, or never.
    let central = policy.replace("    # method: Centralized", "    method: Centralized");
    assert_eq!(warned(&central.replace("high: 15ms", "high: 5ms")), "");
}

#[test]
fn inject_prints_all_objects_and_those_of_workloads_with_envoy() {
    let file = "examples/sidecar/search.yaml";
    let done = headgate(&["inject", "--image=mine:1", file]);
    assert_eq!((text(&done.stderr), done.status.code()), ("", Some(0)));
    let objects: Vec<serde_json::Value> = serde_saphyr::from_multiple(text(&done.stdout)).unwrap();
    let before = std::fs::read_to_string("../../examples/sidecar/search.yaml").unwrap();
    let before: Vec<serde_json::Value> = serde_saphyr::from_multiple(&before).unwrap();
    let [service, account, deployment, policy] = &objects[..] else {
        panic!("{objects:?}");
    };
    // No other object changes. The Service refers to the port by a name, and Envoy's port now has
    // this name.
    assert_eq!([service, account, policy], [0, 1, 3].map(|at| &before[at]));
    let containers = &deployment["spec"]["template"]["spec"]["initContainers"];
    assert_eq!(containers[1]["ports"][0]["name"], "http");
    // `uninject` restores the original objects.
    let removed = fed(&["uninject"], text(&done.stdout));
    assert_eq!(
        (text(&removed.stderr), removed.status.code()),
        ("", Some(0))
    );
    let after: Vec<serde_json::Value> = serde_saphyr::from_multiple(text(&removed.stdout)).unwrap();
    assert_eq!(after, before);
    assert_eq!(
        text(&headgate(&["uninject", file]).stderr),
        "warning: no object in the input has the annotation headgate.dev/injected\n"
    );

    // The input is a list from standard input, with a Service that refers to the port by number.
    // The proxy's image is a custom one.
    let list = r#"{"kind": "List", "items": [
        {"kind": "Pod", "metadata": {"name": "p", "labels": {"app": "a"}, "resourceVersion": "1"},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]},
            "status": {"phase": "Running"}},
        {"kind": "Service", "metadata": {"name": "s"},
            "spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]}}]}"#;
    let injected = fed(&["inject", "--image", "mine:1"], list);
    let objects: Vec<serde_json::Value> =
        serde_saphyr::from_multiple(text(&injected.stdout)).unwrap();
    assert_eq!(objects[0]["spec"]["initContainers"][0]["image"], "mine:1");
    // With a resource version that has been replaced meanwhile, `kubectl apply` would fail.
    assert!(objects[0]["metadata"].get("resourceVersion").is_none());
    assert!(objects[0].get("status").is_none());
    assert_eq!(
        objects[1]["spec"]["ports"][0]["targetPort"],
        "headgate-http"
    );
    assert_eq!(text(&injected.stderr), "");
}

#[test]
fn examples_listen_on_both_families_and_leave_the_admin_interface_on_loopback() {
    let files = std::fs::read_dir("../../examples")
        .unwrap()
        .filter_map(|folder| std::fs::read_dir(folder.unwrap().path()).ok())
        .flatten()
        .map(|file| file.unwrap().path())
        .filter(|file| file.extension().is_some_and(|e| e == "yaml"));
    for file in files {
        let content = std::fs::read_to_string(&file).unwrap();
        for part in ["0.0.0.0", "--admin", "9901"] {
            assert!(!content.contains(part), "{}: {part}", file.display());
        }
    }
}

/// Such as the workloads of a whole cluster.
#[test]
fn inject_reads_any_number_of_objects() {
    let pod = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, ports: \
               [{containerPort: 80}]}]}\n";
    let large = format!("kind: ConfigMap\ndata:\n{}", "- 0\n".repeat(300_000));
    let input = format!("{}{large}---\n{pod}", "kind: Secret\n---\n".repeat(1_100));
    let done = fed(&["inject", "--image=mine:1"], &input);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(text(&done.stdout).matches("kind: Secret").count(), 1_100);
}

#[test]
fn inject_says_what_it_can_not_do() {
    let refused = |input: &str| {
        let output = fed(&["inject", "--image=mine:1"], input);
        assert_eq!((text(&output.stdout), output.status.code()), ("", Some(1)));
        text(&output.stderr).to_owned()
    };
    assert_eq!(
        refused("kind: ConfigMap"),
        "error: no workload in the input: a Deployment, StatefulSet, DaemonSet, ReplicaSet or Pod\n"
    );
    assert_eq!(
        refused("metadata: {name: x}"),
        "error: stdin: kind: missing; each document is a Kubernetes object\n"
    );
    assert_eq!(
        refused("kind: Pod\nmetadata: {name: p\nspec: {}"),
        "error: stdin: while parsing a flow mapping, did not find expected ',' or '}' at line 3, \
         column 5\n"
    );
    assert_eq!(
        refused("kind: Pod\nmetadata: {name: p}\nspec: {containers: none}"),
        "error: Pod p: its Pods have no spec.containers\n"
    );
    assert_eq!(
        refused("kind: Pod\nmetadata: {name: p, labels: 3}\nspec: {containers: []}"),
        "error: Pod p: metadata.labels of its Pods is no mapping\n"
    );
    let unreached = fed(
        &["inject", "--image=mine:1", "--app-port=80"],
        "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}",
    );
    assert_eq!(unreached.status.code(), Some(0));
    assert_eq!(
        text(&unreached.stderr),
        "warning: Pod p: no Service in the input reaches its Envoy; those that point at port 80 \
         bypass it until their targetPort is headgate-http\n"
    );
    // A development build has no image in any registry.
    let unnamed = fed(&["inject"], "kind: ConfigMap");
    assert_eq!(unnamed.status.code(), Some(2));
    assert!(text(&unnamed.stderr).contains("not provided:\n  --image <IMAGE>"));
}

#[test]
fn inject_warns_of_headless_services() {
    let pod = "kind: Pod\nmetadata: {name: p, labels: {app: a}}\nspec: {containers: [{name: c, \
               ports: [{name: grpc, containerPort: 80}]}]}";
    let warned = |address: &str, app: &str| {
        let service = format!(
            "kind: Service\nmetadata: {{name: s}}\nspec: {{clusterIP: {address}, selector: \
             {{app: {app}}}, ports: [{{port: 80, targetPort: grpc}}]}}"
        );
        let input = format!("{pod}\n---\n{service}");
        let done = fed(&["inject", "--image=mine:1"], &input);
        assert_eq!(done.status.code(), Some(0));
        text(&done.stderr).to_owned()
    };
    assert_eq!(
        warned("None", "a"),
        "warning: Service s is headless: clients that connect to port 80 of its Pods bypass \
         Envoy, which listens on port 10000\n"
    );
    assert_eq!(warned("10.0.0.1", "a"), "");
    assert_eq!(warned("None", "b"), "");
}

#[test]
fn inject_warns_of_host_ports() {
    let warned = |port: &str| {
        let pod = format!(
            "kind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{name: c, ports: [{port}]}}]}}"
        );
        let done = fed(&["inject", "--image=mine:1", "--app-port=80"], &pod);
        assert_eq!(done.status.code(), Some(0));
        text(&done.stderr).to_owned()
    };
    assert_eq!(
        warned("{name: http, containerPort: 80, hostPort: 8080}"),
        "warning: Pod p: clients that connect to hostPort 8080 of its nodes bypass Envoy; remove \
         the hostPort\n"
    );
    let of_another = "{name: http, containerPort: 80}, {containerPort: 81, hostPort: 81}";
    assert_eq!(warned(of_another), "");
}

#[test]
fn inject_warns_of_network_policies_that_cut_envoy_off() {
    let pod = "kind: Pod\nmetadata: {name: p, labels: {app: a}}\nspec: {containers: [{name: c, \
               ports: [{name: http, containerPort: 80}]}]}";
    let warned = |rule: &str| {
        let policy = format!(
            "kind: NetworkPolicy\nmetadata: {{name: net}}\nspec: {{podSelector: {{}}, \
             ingress: [{rule}]}}"
        );
        let done = fed(
            &["inject", "--image=mine:1"],
            &format!("{pod}\n---\n{policy}"),
        );
        assert_eq!(done.status.code(), Some(0));
        text(&done.stderr).to_owned()
    };
    assert_eq!(
        warned("{ports: [{port: 80}]}"),
        "warning: NetworkPolicy net admits port 80 and not port 10000, where Envoy listens: \
         requests to Pod p are blocked until the policy admits port http\n"
    );
    assert_eq!(warned("{ports: [{port: http}]}"), "");
}
