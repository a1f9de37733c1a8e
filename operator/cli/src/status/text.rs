//! Formats the state of policies in a cluster or of a `headgate run` as tables for terminals.

use std::time::SystemTime;

use super::view::{Carrier, OperatorView, Policy, Target, View, Workload};
use headgate_command::table::{Table, first, one_line};
use headgate_controller::conditions::Type;
use headgate_controller::report::ProxyReport;
use headgate_deliver::NO_FILTER;
use headgate_xds::DEFAULT_SLOT;
use headgate_xds::timestamp::age;

/// Returns the tables, followed by a line for each problem.
pub(crate) fn render(view: &View, now: SystemTime) -> String {
    let mut parts = vec![policies(view, now)];
    let contested = |w: &&Workload| !w.out_of_force.is_empty();
    if view.workloads.iter().any(|w| contested(&w)) {
        parts.push(workloads(view.workloads.iter().filter(contested)));
    }
    if !view.objects.is_empty() {
        parts.push(objects(&view.objects));
    }
    // The advice is only for policies without proxies. Other policies may be enforced by proxies of
    // another control plane, or may be waiting for a Pod that reads their object.
    let mut policies = view.policies.iter();
    let advice = policies.all(|policy| {
        let mut targets = policy.targets.iter();
        let lacks_proxies = targets.all(|t| {
            let is_elsewhere = !t.is(Type::Accepted) || t.is(Type::Overridden);
            t.reason(Type::Programmed) == "NoProxies" || is_elsewhere
        });
        lacks_proxies && !view.is_carried(&policy.name)
    });
    let answered = view.local.is_some() || view.operators.iter().any(|o| o.problem.is_none());
    if !view.proxies.is_empty() || answered && advice {
        parts.push(proxies(view));
    }
    let remarks = remarks(view);
    if !remarks.is_empty() {
        parts.push(remarks.join("\n") + "\n");
    }
    parts.join("\n")
}

fn policies(view: &View, now: SystemTime) -> String {
    let last = if view.local.is_some() {
        "REVISION"
    } else {
        "AGE"
    };
    let mut table = Table::new([
        "POLICY",
        "TARGET",
        "MODE",
        "ACCEPTED",
        "PROGRAMMED",
        "PROXIES",
        last,
    ]);
    for policy in &view.policies {
        for (i, target) in policy.targets.iter().enumerate() {
            // The policy's own columns are filled only in its first row.
            let once = |text: String| if i == 0 { text } else { String::new() };
            let created = policy.created.as_ref().map(|at| {
                let elapsed = now.duration_since(at.0.into());
                age(elapsed.unwrap_or_default())
            });
            let last = created.unwrap_or_else(|| policy.revision.clone());
            table.row([
                once(policy.name.clone()),
                target.target.clone(),
                once(policy.mode.clone()),
                of_target(target, Type::Accepted),
                of_target(target, Type::Programmed),
                once(dash(&share(view, policy))),
                once(dash(&last)),
            ]);
        }
    }
    table.or("No policies.\n")
}

/// Returns the numbers of proxies in sync and in total. The text is empty if the proxies belong to
/// another control plane, which doesn't report their number.
fn share(view: &View, policy: &Policy) -> String {
    let is_elsewhere = || {
        let mut targets = policy.targets.iter();
        view.is_carried(&policy.name) || targets.any(|t| t.is(Type::Programmed))
    };
    match policy.proxies {
        Some(share) if share.total > 0 || !is_elsewhere() => {
            format!("{}/{}", share.in_sync, share.total)
        }
        _ => String::new(),
    }
}

/// Returns the table of objects, with the status that each object's reader wrote.
fn objects(objects: &[Carrier]) -> String {
    let mut table = Table::new(["OBJECT", "POLICIES", "REVISION", "STATUS"]);
    for o in objects {
        let said = o.conditions.iter();
        let said: Vec<String> = said
            .map(|(kind, c)| format!("{kind} {}", condition(&c.status, &c.reason, kind)))
            .collect();
        table.row([
            format!("{} {}", o.kind, o.name),
            first(&o.policies, 1),
            dash(&o.revision),
            dash(&said.join(", ")),
        ]);
    }
    table.or("")
}

/// Returns the table of proxies, with the target or the namespace of each.
fn proxies(view: &View) -> String {
    let place = if view.local.is_some() {
        "TARGET"
    } else {
        "NAMESPACE"
    };
    let mut table = Table::new([
        "PROXY", place, "FILTER", "STATE", "POLICIES", "REVISION", "SINCE",
    ]);
    for p in view.proxies.iter().map(|p| &p.report) {
        let place = if view.local.is_some() {
            &p.target
        } else {
            &p.namespace
        };
        table.row([
            stream(p),
            dash(place.as_deref().unwrap_or_default()),
            dash(&p.filter),
            p.state.clone(),
            dash(&first(&p.policies, 1)),
            dash(p.acked.as_ref().map_or("", |a| &a.revision)),
            p.disconnected
                .clone()
                .unwrap_or_else(|| p.connected.clone()),
        ]);
    }
    table.or(
        "No proxies. headgate inject adds them to Pods; headgate bootstrap writes a configuration \
         for one.\n",
    )
}

/// Returns the proxy's name, and the slots of its stream unless they are the default slots.
fn stream(p: &ProxyReport) -> String {
    match p.slots.as_slice() {
        [] => p.node.clone(),
        [only] if only == DEFAULT_SLOT => p.node.clone(),
        slots => format!("{} ({})", p.node, slots.join(", ")),
    }
}

fn dash(text: &str) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text.to_owned()
    }
}

/// Returns the table of targets with several policies.
fn workloads<'a>(workloads: impl Iterator<Item = &'a Workload>) -> String {
    let mut table = Table::new(["WORKLOAD", "IN FORCE", "NOT IN FORCE"]);
    for workload in workloads {
        let losers = workload.out_of_force.iter();
        let losers: Vec<String> = losers
            .map(|l| format!("{} ({})", l.policy, l.reason))
            .collect();
        table.row([
            workload.target.clone(),
            dash(&workload.in_force.join(", ")),
            losers.join(", "),
        ]);
    }
    table.or("")
}

fn of_target(target: &Target, of: Type) -> String {
    condition(target.status(of), target.reason(of), of.as_str())
}

fn condition(status: &str, reason: &str, expected: &str) -> String {
    match reason == expected {
        true => status.to_owned(),
        false => format!("{status} ({reason})"),
    }
}

fn remarks(view: &View) -> Vec<String> {
    let mut lines = Vec::new();
    for policy in &view.policies {
        for target in &policy.targets {
            let name = match policy.targets.len() {
                1 => policy.name.clone(),
                _ => format!("{} at {}", policy.name, target.target),
            };
            let mut say = |of| {
                lines.push(format!(
                    "{name}: {}: {}",
                    target.reason(of),
                    target.message(of)
                ));
            };
            let is_plain = ["", "valid"].contains(&target.message(Type::Accepted));
            if !target.is(Type::Accepted) || !is_plain {
                say(Type::Accepted);
            }
            // Other types than these two are present only while they are of interest.
            let others = { target.conditions.keys() }
                .filter(|of| !matches!(of, Type::Accepted | Type::Programmed));
            for of in others.filter(|of| target.status(**of) != "Unknown") {
                say(*of);
            }
            // The message is shown, because it names the objects that carry the policy, and no
            // table lists them.
            let is_hidden = target.is(Type::Programmed)
                && view.objects.is_empty()
                && policy.proxies.is_some_and(|s| s.total == 0);
            let mut said = { target.conditions.iter() }.filter(|(of, _)| **of != Type::Programmed);
            let is_said = said.any(|(_, c)| c.reason == target.reason(Type::Programmed));
            let is_at_risk = target.message(Type::Programmed).contains(NO_FILTER);
            if !target.is(Type::Programmed) && !is_said || is_hidden || is_at_risk {
                say(Type::Programmed);
            }
        }
    }
    lines.extend(view.proxies.iter().flat_map(|p| proxy_remarks(&p.report)));
    lines.extend(view.local.iter().flatten().cloned());
    for OperatorView { pod, problem, .. } in &view.operators {
        lines.extend(problem.as_ref().map(|why| format!("operator {pod}: {why}")));
    }
    let mut modules: Vec<&str> = view
        .operators
        .iter()
        .filter_map(|o| o.module.as_deref())
        .collect();
    modules.sort_unstable();
    modules.dedup();
    if modules.len() > 1 {
        lines.push(format!(
            "operators serve different modules: {}; a rollout is in progress or stuck",
            modules.join(", ")
        ));
    }
    lines.iter().map(|line| one_line(line)).collect()
}

/// Returns the problems of a proxy.
fn proxy_remarks(p: &ProxyReport) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(problem) = &p.problem {
        lines.push(format!("{}: {problem}", p.node));
    }
    if let Some(why) = &p.fallback {
        lines.push(format!(
            "{}: has the Wasm filter, not the native one: {why}",
            p.node
        ));
    }
    if let Some(nack) = &p.nack {
        let (time, revision) = (&nack.push.time, dash(&nack.push.revision));
        lines.push(format!(
            "{}: refused revision {revision} at {time}: {}",
            p.node, nack.message
        ));
    }
    lines
}
