//! Families of metrics, for workflows and services. The names of workflows and services come from
//! requests, and a family's labels may have any value.
//!
//! ```text
//! headgate.policy.<policy>.workflow.<workflow>.<metric>
//!     headgate.workflow.<metric> {headgate_policy, headgate_workflow}
//! headgate.policy.<policy>.service.<service>.index
//!     headgate.service.index {headgate_policy, headgate_service}
//! ```
//!
//! The `stats_tags` of `headgate bootstrap` convert the Wasm filter's names to the same names and
//! labels, and its runtime key sets the same prefix. So both filters have the same series in
//! Prometheus. In `/stats` labels follow the name:
//! `headgate.workflow.calls.headgate_policy.shop/app.headgate_workflow.bulk`.

/// The names of a family's labels.
pub(crate) type Labels = [&'static str; 2];

const POLICY: &str = "headgate_policy";
/// The parts of metrics' names that denote a family, each with the family's second label.
const PARTS: [(&str, &str); 2] = [
    ("workflow", "headgate_workflow"),
    ("service", "headgate_service"),
];

/// The family of services. It has no member when Envoy creates a configuration. The family of
/// workflows has the member `_other` then.
pub(crate) const SERVICES: (&str, Labels) = ("headgate.service.index", [POLICY, PARTS[1].1]);

/// One metric of a family.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// The family's name.
    pub(crate) family: String,
    pub(crate) labels: Labels,
    pub(crate) values: [String; 2],
}

impl Member {
    /// Returns the member for `name`, a metric's name in the engine. Returns `None` if the metric
    /// is in no family.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let (policy, rest) = name.strip_prefix("headgate.policy.")?.split_once('.')?;
        let mut rest = rest.splitn(3, '.');
        let (part, value, metric) = (rest.next()?, rest.next()?, rest.next()?);
        let (_, label) = PARTS.into_iter().find(|(name, _)| *name == part)?;
        Some(Self {
            family: format!("headgate.{part}.{metric}"),
            labels: [POLICY, label],
            values: [policy.to_owned(), value.to_owned()],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_workflows_and_services_are_members() {
        let member = |name: &str, labels: Labels, values: [&str; 2]| Member {
            family: name.to_owned(),
            labels,
            values: values.map(str::to_owned),
        };
        let (name, labels) = SERVICES;
        assert_eq!(
            Member::of("headgate.policy.shop/app.service.extent.index"),
            Some(member(name, labels, ["shop/app", "extent"]))
        );
        assert_eq!(
            Member::of("headgate.policy.shop/app.workflow._other.rate_mhz"),
            Some(member(
                "headgate.workflow.rate_mhz",
                ["headgate_policy", "headgate_workflow"],
                ["shop/app", "_other"]
            ))
        );
        for single in [
            "headgate.panics",
            "headgate.policy.shop/app.workflows",
            "headgate.policy.shop/app.slots",
            "headgate.policy.shop/app.type.workflow.rq_total",
        ] {
            assert_eq!(Member::of(single), None, "{single}");
        }
    }
}
