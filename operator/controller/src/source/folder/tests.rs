use std::sync::Arc;

use super::*;
use headgate_xds::node::Identity;
use headgate_xds::snapshot::Snapshot;

/// Returns a document of a policy file. An objective of 0ms is a mistake.
fn policy(name: &str, target: &str, p50: &str) -> String {
    format!(
        "---\napiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {{name: \
         {name}}}\nspec:\n  targetRefs: [{{kind: Service, name: {target}}}]\n  parallelism: \
         {{total: 4}}\n  types: [{{name: default, slo: {{p50: {p50}}}}}]\n"
    )
}

fn scan(files: &[(&str, &str)]) -> Scan {
    Ok(files
        .iter()
        .map(|(name, text)| (PathBuf::from(name), Ok(text.as_bytes().to_vec())))
        .collect())
}

fn update(folder: &mut Folder, files: &[(&str, &str)]) -> Plan {
    folder.update(Path::new("conf"), scan(files)).unwrap()
}

/// Returns the objective of `default` on a target, in ms. `None` without a policy in force.
fn enforced(plan: &Plan, target: &str) -> Option<u64> {
    let config = plan
        .workloads
        .get(&format!("Service/default/{target}").parse().unwrap())?;
    Some(config.stages[0].types[0].slo[0].objective_us / 1000)
}

fn accepted(plan: &Plan) -> Vec<(&str, bool)> {
    plan.policies
        .iter()
        .map(|p| (p.name.as_str(), p.accepted.is_ok()))
        .collect()
}

#[test]
fn a_plan_is_made_only_when_something_changed() {
    let mut folder = Folder::default();
    let a = policy("a", "x", "18ms");
    let plan = update(&mut folder, &[("a.yaml", &a)]);
    assert_eq!(
        (enforced(&plan, "x"), accepted(&plan)),
        (Some(18), vec![("default/a", true)])
    );
    assert_eq!(
        plan.policies[0].revision,
        plan.workloads.values().next().unwrap().revision
    );
    assert_eq!(
        folder.update(Path::new("conf"), scan(&[("a.yaml", &a)])),
        None
    );
    let plan = update(&mut folder, &[]);
    assert_eq!(plan, Plan::default());
    assert_eq!(folder.update(Path::new("conf"), scan(&[])), None);
}

#[test]
fn a_policy_that_becomes_wrong_keeps_its_last_good_version() {
    let mut folder = Folder::default();
    let two = |p50: &str| policy("a", "x", p50) + &policy("b", "y", p50);
    update(&mut folder, &[("f.yaml", &two("18ms"))]);
    let mixed = policy("a", "x", "0ms") + &policy("b", "y", "20ms");
    let plan = update(&mut folder, &[("f.yaml", &mixed)]);
    assert_eq!(
        (enforced(&plan, "x"), enforced(&plan, "y")),
        (Some(18), Some(20))
    );
    assert_eq!(accepted(&plan), [("default/a", false), ("default/b", true)]);
    let why = plan.policies[0].accepted.as_ref().unwrap_err();
    assert_eq!(why, "f.yaml:8:33: spec.types[0].slo.p50: 0ms; 1ms to 1h");
    assert_eq!(
        plan.policies[0].revision,
        plan.workloads.values().next().unwrap().revision
    );

    let plan = update(&mut folder, &[("f.yaml", &two("22ms"))]);
    assert_eq!(
        (enforced(&plan, "x"), enforced(&plan, "y")),
        (Some(22), Some(22))
    );
    assert_eq!(accepted(&plan), [("default/a", true), ("default/b", true)]);
}

#[test]
fn a_file_that_is_no_yaml_keeps_all_its_policies() {
    let mut folder = Folder::default();
    update(
        &mut folder,
        &[(
            "f.yaml",
            &(policy("a", "x", "18ms") + &policy("b", "y", "19ms")),
        )],
    );
    for broken in ["a: [", "", "metadata: {}", "\u{0}"] {
        let plan = update(&mut folder, &[("f.yaml", broken)]);
        assert_eq!(
            (enforced(&plan, "x"), enforced(&plan, "y")),
            (Some(18), Some(19)),
            "{broken:?}"
        );
        assert_eq!(
            accepted(&plan),
            [("default/a", false), ("default/b", false)],
            "{broken:?}"
        );
        assert!(!plan.problems.is_empty(), "{broken:?}");
    }
    // The file can be read again, and has one policy less.
    let plan = update(&mut folder, &[("f.yaml", &policy("b", "y", "20ms"))]);
    assert_eq!(
        (enforced(&plan, "x"), enforced(&plan, "y")),
        (None, Some(20))
    );
    assert_eq!(plan.problems, []);
}

#[test]
fn a_policy_that_never_was_right_is_shown_and_not_enforced() {
    let mut folder = Folder::default();
    let plan = update(
        &mut folder,
        &[("a.yaml", &policy("a", "x", "0ms")), ("b.yaml", "[")],
    );
    assert_eq!(accepted(&plan), [("default/a", false)]);
    assert_eq!(plan.policies[0].revision, "");
    assert_eq!(plan.policies[0].targets[0].to_string(), "Service/default/x");
    assert_eq!(plan.problems.len(), 1);
    assert_eq!(plan.workloads.len(), 0);
}

#[test]
fn deleting_a_file_removes_its_policies_even_when_it_was_broken() {
    let mut folder = Folder::default();
    update(&mut folder, &[("a.yaml", &policy("a", "x", "18ms"))]);
    update(&mut folder, &[("a.yaml", "[")]);
    assert_eq!(update(&mut folder, &[]), Plan::default());
}

#[test]
fn a_folder_that_can_not_be_read_keeps_everything() {
    let mut folder = Folder::default();
    update(&mut folder, &[("a.yaml", &policy("a", "x", "18ms"))]);
    let plan = folder
        .update(Path::new("conf"), Err("no such folder".into()))
        .unwrap();
    assert_eq!(enforced(&plan, "x"), Some(18));
    assert_eq!(plan.problems[0].source, "conf");
    assert_eq!(
        folder.update(Path::new("conf"), Err("no such folder".into())),
        None
    );
    let plan = update(&mut folder, &[("a.yaml", &policy("a", "x", "18ms"))]);
    assert_eq!(plan.problems, []);
}

#[test]
fn an_unreadable_file_keeps_its_policies() {
    let mut folder = Folder::default();
    update(&mut folder, &[("a.yaml", &policy("a", "x", "18ms"))]);
    let unreadable = BTreeMap::from([(
        PathBuf::from("a.yaml"),
        Err("can't be read: denied".to_owned()),
    )]);
    let plan = folder.update(Path::new("conf"), Ok(unreadable)).unwrap();
    assert_eq!(enforced(&plan, "x"), Some(18));
    assert_eq!(
        plan.policies[0].accepted,
        Err("a.yaml: can't be read: denied".into())
    );
}

#[test]
fn of_two_policies_with_one_name_the_first_file_has_it() {
    let mut folder = Folder::default();
    let (a, b) = (policy("p", "x", "18ms"), policy("p", "x", "20ms"));
    let plan = update(&mut folder, &[("a.yaml", &a), ("b.yaml", &b)]);
    assert_eq!(enforced(&plan, "x"), Some(18));
    assert_eq!(accepted(&plan), [("default/p", true), ("default/p", false)]);
    assert_eq!(
        plan.policies[1].accepted,
        Err(
            "b.yaml:2:1: metadata.name: default/p is also at a.yaml:2; rename one or delete it"
                .into()
        )
    );
    // The policy moves from one file to another, with nothing wrong in between.
    let plan = update(&mut folder, &[("b.yaml", &b)]);
    assert_eq!(
        (enforced(&plan, "x"), accepted(&plan)),
        (Some(20), vec![("default/p", true)])
    );
}

#[test]
fn conflicts_are_shown_with_the_policy_that_lost() {
    let mut folder = Folder::default();
    let (a, b) = (policy("a", "x", "18ms"), policy("b", "x", "20ms"));
    let plan = update(&mut folder, &[("a.yaml", &a), ("b.yaml", &b)]);
    assert_eq!(enforced(&plan, "x"), Some(18));
    let lost = &plan.policies[1];
    assert_eq!(
        (lost.accepted.clone(), lost.revision.as_str()),
        (Ok(()), "")
    );
    assert_eq!(lost.conflicts[0].winner, "default/a");
}

/// A proxy that connects to a newly started operator keeps its own configuration if the operator
/// may lack one of its policies.
#[test]
fn proxies_lack_no_policy_that_another_one_replaces() {
    let lacks = |name: &str, first: &str, second: &str| {
        let (a, b) = (policy("a", "x", first), policy(name, "x", second));
        let plan = update(&mut Folder::default(), &[("a.yaml", &a), ("b.yaml", &b)]);
        let identity = Identity {
            target: Some("Service/default/x".parse().unwrap()),
            ..Identity::default()
        };
        Snapshot::new(Arc::new(plan), Arc::default()).lacks_a_policy_of(&identity)
    };
    assert!(lacks("b", "0ms", "18ms"), "the broken one has precedence");
    assert!(!lacks("b", "18ms", "0ms"));
    assert!(
        !lacks("a", "18ms", "18ms"),
        "two files have the same policy"
    );
}

#[test]
fn manifests_of_other_apis_are_left_out_beside_policies() {
    let mut folder = Folder::default();
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: x}\n";
    let plan = update(&mut folder, &[("service.yaml", service)]);
    assert_eq!(
        accepted(&plan),
        [("default/x", false)],
        "nothing else is there"
    );
    let (a, b) = (policy("a", "x", "18ms"), policy("b", "y", "18ms"));
    let plan = update(&mut folder, &[("a.yaml", &a), ("service.yaml", service)]);
    assert_eq!(accepted(&plan), [("default/a", true)]);
    assert_eq!(plan.problems, []);
    // A misspelt `apiVersion` doesn't make a policy an object of another API, and removes no
    // policy.
    let slip = a.replace("headgate.dev", "headgaet.example");
    let plan = update(&mut folder, &[("a.yaml", &slip), ("b.yaml", &b)]);
    assert_eq!(enforced(&plan, "x"), Some(18));
    assert_eq!(accepted(&plan), [("default/a", false), ("default/b", true)]);
    let plan = update(&mut folder, &[("a.yaml", service), ("b.yaml", &b)]);
    assert_eq!(
        (enforced(&plan, "x"), accepted(&plan)),
        (None, vec![("default/b", true)])
    );
}
