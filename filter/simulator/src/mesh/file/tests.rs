use super::*;
use crate::mesh::{Arrivals, Calls, Count, Route, Step};
use crate::workload::ServiceTime;
use crate::workload::file::Right;

fn operation(name: &str, steps: &str) -> String {
    format!(r#"{{"name": "{name}", "steps": [{steps}]}}"#)
}

fn service(name: &str, operations: &[String]) -> String {
    let operations = operations.join(",");
    format!(
        r#"{{"name": "{name}", "parallelism": 10, "processes": 2, "operations": [{operations}]}}"#
    )
}

fn call(service: &str, more: &str) -> String {
    format!(r#"{{"call": {{"service": "{service}"{more}}}}}"#)
}

const WORK: &str = r#"{"compute": {"distribution": "Constant", "mean": "2ms"}}"#;

fn mesh(services: &[String], workflows: &str, more: &str) -> MeshFile {
    let services = services.join(",");
    let text = format!(r#"{{"services": [{services}], "workflows": [{workflows}]{more}}}"#);
    serde_json::from_str(&text).unwrap()
}

const CLIENTS: &str = r#"{"name": "w", "service": "a", "clients": [{"rate": 5}]}"#;

/// Returns the problems as `field: value found; valid value`.
fn problems(file: &MeshFile) -> Vec<String> {
    let say = |problem: crate::workload::file::Problem| {
        let at = problem.at;
        match problem.right {
            Right::Text(right) => format!("{at}: {}; {right}", problem.found),
            Right::TypeOfPolicy(_) => unreachable!(),
        }
    };
    file.plan().unwrap_err().into_iter().map(say).collect()
}

#[test]
fn operations_become_tasks_and_clients_loads() {
    let a = service(
        "a",
        &[operation(
            "",
            &[
                WORK,
                &call(
                    "b",
                    r#", "operation": "two", "count": 3, "atOnce": true, "route": "Each""#,
                ),
            ]
            .join(","),
        )],
    );
    let b = service(
        "b",
        &[
            operation("one", WORK),
            operation("two", &call("c", r#", "process": 2"#)),
        ],
    );
    let c = service("c", &[operation("only", WORK)]);
    let workflows = r#"{"name": "w", "service": "a", "timeout": "3s", "deadline": "500ms",
        "clients": [{"rate": 5, "process": "Constant", "from": "1s", "until": "2s"}, {"count": 4}]}"#;
    let plan = mesh(
        &[a, b, c],
        workflows,
        r#", "duration": "8s", "network": {"lost": 0.1}"#,
    );
    let plan = plan.plan().unwrap();
    let graph = &plan.graph;
    assert_eq!(
        graph.tasks.iter().map(|t| t.service).collect::<Vec<_>>(),
        [0, 1, 1, 2]
    );
    assert_eq!(
        graph.tasks[0].steps,
        [
            Step::Compute(ServiceTime::Constant(2.0)),
            Step::Call(Calls {
                task: 2,
                count: Count::Fixed(3),
                at_once: 3,
                route: Route::Each,
            }),
        ]
    );
    assert_eq!(
        graph.tasks[2].steps,
        [Step::Call(Calls::one(3, Route::Fixed(1)))]
    );
    assert_eq!(graph.workflows[0].timeout.unwrap().as_secs(), 3);
    assert_eq!(graph.workflows[0].deadline.unwrap().as_millis(), 500);
    assert_eq!(
        (graph.network.lost, plan.duration, plan.warm_up),
        (0.1, 8.0, 2.0)
    );
    assert_eq!(plan.loads[0].arrivals, Arrivals::Even(5.0));
    assert_eq!(
        (plan.loads[0].from, plan.loads[0].until),
        (1_000_000_000, 2_000_000_000)
    );
    assert_eq!(
        plan.loads[1].arrivals,
        Arrivals::Closed(4, ServiceTime::Constant(1.0))
    );
}

#[test]
fn mistakes_are_named() {
    let one = |steps: &str| mesh(&[service("a", &[operation("", steps)])], CLIENTS, "");
    for (steps, expected) in [
        ("", "services[0].operations[0].steps: none; such as"),
        (
            "{}",
            "services[0].operations[0].steps[0]: neither compute nor call; one of the two",
        ),
        (
            r#"{"compute": {"distribution": "Recorded"}}"#,
            "services[0].operations[0].steps[0].compute: Recorded; another distribution",
        ),
        (
            r#"{"compute": {"distribution": "Constant"}}"#,
            "services[0].operations[0].steps[0].compute.mean: missing; a time such as 1.16ms",
        ),
        (
            &call("z", ""),
            "services[0].operations[0].steps[0].call.service: \"z\" is not a service; one of a",
        ),
        (
            &call("a", r#", "operation": "x""#),
            "services[0].operations[0].steps[0].call.operation: \"x\" is not an operation of a; one of ",
        ),
        (
            &call("a", r#", "process": 3"#),
            "services[0].operations[0].steps[0].call.process: 3; 1 to 2",
        ),
        (
            &call("a", r#", "count": 0"#),
            "services[0].operations[0].steps[0].call.count: 0; 1 to 10000",
        ),
    ] {
        let found = problems(&one(steps));
        assert!(
            found[0].starts_with(expected),
            "{found:?}, not {expected:?}"
        );
    }
    let work = || service("a", &[operation("", WORK)]);
    for (workflows, more, expected) in [
        ("", "", "workflows: 0 workflows; 1 to 100"),
        (
            r#"{"name": "w", "service": "b", "clients": [{"rate": 5}]}"#,
            "",
            "workflows[0].service: \"b\" is not a service; one of a",
        ),
        (
            r#"{"name": "w", "service": "a", "clients": []}"#,
            "",
            "workflows[0].clients: none; such as",
        ),
        (
            r#"{"name": "w", "service": "a", "clients": [{"rate": 5, "count": 2}]}"#,
            "",
            "workflows[0].clients[0]: rate and count; rate for an open loop",
        ),
        (
            r#"{"name": "w", "service": "a", "clients": [{"rate": 5, "think": "1s"}]}"#,
            "",
            "workflows[0].clients[0].think: given with rate; leave it out, or use count",
        ),
        (
            r#"{"name": "w", "service": "a", "clients": [{"rate": 5, "process": "Bursty"}]}"#,
            "",
            "workflows[0].clients[0].process: Bursty; Poisson or Constant",
        ),
        (
            r#"{"name": "w", "service": "a", "clients": [{"rate": 5, "from": "9s", "until": "1s"}]}"#,
            "",
            "workflows[0].clients[0].until: 1 s; after from (9 s)",
        ),
        (
            CLIENTS,
            r#", "warmUp": "2m""#,
            "warmUp: 120 s; less than the duration of 60 s",
        ),
        (
            CLIENTS,
            r#", "network": {"lost": 1}"#,
            "network.lost: 1; 0 or more, below 1",
        ),
        (
            CLIENTS,
            r#", "seed": -1"#,
            "seed: -1; a whole number of at least 0",
        ),
    ] {
        let found = problems(&mesh(&[work()], workflows, more));
        assert!(
            found.len() == 1 && found[0].starts_with(expected),
            "{found:?}, not {expected:?}"
        );
    }
    let twice = problems(&mesh(&[work(), work()], CLIENTS, ""));
    assert!(
        twice[0].starts_with("services[1].name: \"a\" appears twice; names are unique"),
        "{twice:?}"
    );
}

#[test]
fn calls_come_to_an_end_and_do_not_flood() {
    let circle = [
        service("a", &[operation("", &call("b", ""))]),
        service("b", &[operation("in", &call("c", ""))]),
        service("c", &[operation("", &call("b", ""))]),
    ];
    assert_eq!(
        problems(&mesh(&circle, CLIENTS, "")),
        [
            "services[1].operations[0].steps: b/in → c → b/in; no cycle: an operation must not \
             call itself, directly or indirectly"
        ]
    );
    let many = |to: &str| operation("", &call(to, r#", "count": 100"#));
    let flood = [
        service("a", &[many("b")]),
        service("b", &[many("c")]),
        service("c", &[many("d")]),
        service("d", &[operation("", WORK)]),
    ];
    assert_eq!(
        problems(&mesh(&flood, CLIENTS, "")),
        ["services[0].operations[0].steps: 1010100 calls for one request; at most 100000"]
    );
}
