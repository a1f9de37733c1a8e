//! Policies generated from numbers. Either all values are within their documented bounds, or one
//! value breaks its rule.
//!
//! Tests of `validate` and of the API server use the same policies.

// Helpers of tests fail a test by panicking, as tests do. The visibility of items is that which the
// including test needs.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::time::Duration as Span;

use headgate_api::Duration;
use serde_json::{Map, Value, json};

/// A generator of policies from numbers. If a policy fails a test, shrinking the numbers also
/// shrinks the policy.
pub(crate) struct Dice {
    throws: std::vec::IntoIter<u32>,
    slip: Option<Slip>,
}

/// The number of ways in which a value can be wrong.
const VARIANTS: usize = 7;

/// The only value that breaks its rule. A second such value could hide that the first one was
/// accepted.
#[derive(Clone, Copy)]
struct Slip {
    /// The number of values before the wrong one. These values follow their rules.
    after: u32,
    /// The kind of mistake, below [`VARIANTS`].
    variant: usize,
}

const TYPES: [&str; 4] = ["default", "slow", "Fast_1", "x"];
const CLASSES: [&str; 3] = ["gold", "silver", "rest"];
pub(crate) const STRATEGIES: [&str; 6] = [
    "Bouncer",
    "MaxQueueLength",
    "MaxQueueWait",
    "AcceptFraction",
    "ResponseTimeController",
    "BacklogControl",
];
const DISCIPLINES: [&str; 10] = [
    "FIFO", "EDF", "LSTF", "SJF", "SRTF", "LASF", "DRR", "WFQ", "Priority", "Slack",
];

impl Dice {
    /// Returns a generator of correct policies.
    pub(crate) fn new(throws: Vec<u32>) -> Self {
        Self {
            throws: throws.into_iter(),
            slip: None,
        }
    }

    /// Returns a number from 0 to `most`. The number is 0 once the generator's numbers are used up.
    fn below_or_at(&mut self, most: u32) -> u32 {
        let throw = self.throws.next().unwrap_or(0);
        u32::try_from((u64::from(throw) * (u64::from(most) + 1)) >> 32).unwrap()
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.below_or_at(n - 1) == n - 1
    }

    /// Returns the variant of the slip if the next value should be wrong.
    fn slips(&mut self) -> Option<usize> {
        let slip = self.slip.as_mut()?;
        let left = slip.after.checked_sub(1);
        slip.after = left.unwrap_or(u32::MAX);
        left.is_none().then_some(slip.variant)
    }

    fn breaks(&mut self) -> bool {
        self.slips().is_some()
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below_or_at(u32::try_from(from.len()).unwrap() - 1) as usize]
    }

    /// Returns one of `from`, or a name that isn't among them.
    fn name(&mut self, from: &[&'static str]) -> &'static str {
        if self.breaks() {
            "no-such-name"
        } else {
            self.pick(from)
        }
    }

    fn number(&mut self, low: u32, high: u32) -> Value {
        if let Some(variant) = self.slips() {
            let odd = [-1, 0, i64::from(low) - 1, i64::from(high) + 1, i64::MAX];
            return json!(odd[variant % odd.len()]);
        }
        match self.below_or_at(3) {
            0 => json!(low),
            1 => json!(high),
            _ => json!(low + self.below_or_at(high - low)),
        }
    }

    /// Returns a number from `low` to `high`. The flags in `open` exclude the ends.
    fn real(&mut self, low: f64, high: f64, open: (bool, bool)) -> Value {
        if let Some(variant) = self.slips() {
            let odd: [f64; VARIANTS] = [-1.0, 0.0, low, high, low / 2.0, high * 1.001, f64::MAX];
            return json!(odd[variant]);
        }
        match self.below_or_at(3) {
            0 if !open.0 => json!(low),
            1 if !open.1 => json!(high),
            _ => {
                let share = (f64::from(self.below_or_at(u32::MAX - 2)) + 1.0) / f64::from(u32::MAX);
                let between = low + (high - low) * share;
                // Rounding may give one of the ends.
                let reaches = between <= low || between >= high;
                json!(if reaches { (low + high) / 2.0 } else { between })
            }
        }
    }

    fn ms(&mut self, low: u64, high: u64) -> Value {
        let odd = [0, low - 1, high + 1];
        let ms = match self.slips() {
            Some(variant) => odd[variant % odd.len()],
            None => match self.below_or_at(3) {
                0 => low,
                1 => high,
                _ => low + u64::from(self.below_or_at(u32::try_from(high - low).unwrap())),
            },
        };
        json!(Duration::from(Span::from_millis(ms)).to_string())
    }

    /// Sets `field` in half of all cases. The field is always set if its value may be the wrong
    /// one.
    fn perhaps(
        &mut self,
        to: &mut Map<String, Value>,
        field: &str,
        value: impl FnOnce(&mut Self) -> Value,
    ) {
        if self.slip.is_some() || self.one_in(2) {
            let value = value(self);
            to.insert(field.to_owned(), value);
        }
    }

    /// Sets the window D and its step Δ, which depend on each other.
    fn window(&mut self, to: &mut Map<String, Value>) {
        if self.slip.is_some() || self.one_in(2) {
            let step = u64::from(1 + self.below_or_at(300));
            let steps = if self.breaks() {
                1
            } else {
                u64::from(2 + self.below_or_at(9_998))
            };
            let text = |ms| json!(Duration::from(Span::from_millis(ms)).to_string());
            to.insert("step".into(), text(step));
            to.insert("window".into(), text(step * steps));
        }
    }

    /// Returns a mapping of some of `names` to values.
    fn by_name(
        &mut self,
        names: &[&'static str],
        least: u32,
        mut value: impl FnMut(&mut Self) -> Value,
    ) -> Value {
        let mut map = Map::new();
        for _ in 0..least.max(self.below_or_at(2)) {
            let name = self.name(names);
            map.insert(name.to_owned(), value(self));
        }
        Value::Object(map)
    }
}

/// Returns variants of one policy. In each variant, another single value breaks its rule. The flag
/// is false if no value was left to break.
pub(crate) fn with_one_slip(strategy: &'static str, throws: &[u32]) -> Vec<(Value, bool)> {
    let mut policies = Vec::new();
    for after in 0.. {
        let mut slips = 0;
        for variant in 0..VARIANTS {
            let mut dice = Dice {
                slip: Some(Slip { after, variant }),
                ..Dice::new(throws.to_vec())
            };
            let policy = policy(strategy, &mut dice);
            // The counter has wrapped around, so the wrong value was used.
            let slipped = dice.slip.is_some_and(|slip| slip.after > after);
            slips += usize::from(slipped);
            policies.push((policy, slipped));
        }
        if slips == 0 {
            break;
        }
    }
    policies
}

/// The parts of a policy that its other parts refer to.
struct Outline {
    types: Vec<&'static str>,
    classes: Vec<&'static str>,
    strategy: &'static str,
}

/// Returns a policy with this strategy.
pub(crate) fn policy(strategy_type: &'static str, dice: &mut Dice) -> Value {
    let mut types = TYPES[..1 + dice.below_or_at(3) as usize].to_vec();
    let default = dice.below_or_at(u32::try_from(types.len()).unwrap() - 1);
    types.swap(0, default as usize);
    // The last class takes all other requests. If the policy has only one class, it is this class.
    let first = match dice.below_or_at(3) as usize {
        0 => CLASSES.len(),
        n => CLASSES.len() - n,
    };
    let outline = Outline {
        types,
        classes: CLASSES[first..].to_vec(),
        strategy: strategy_type,
    };
    let mut spec = Map::new();
    spec.insert(
        "targetRefs".into(),
        json!([{"kind": "Service", "name": "a"}]),
    );
    let parallelism = match dice.pick(&["total", "perEndpoint", "auto"]) {
        "auto" => {
            json!({"auto": {"min": dice.number(1, 1_000), "max": dice.number(1_000, 1_000_000)}})
        }
        slots => json!({slots: dice.number(1, 1_000_000)}),
    };
    spec.insert("parallelism".into(), parallelism);
    dice.perhaps(&mut spec, "mode", |d| json!(d.pick(&["Enforce", "DryRun"])));
    dice.perhaps(&mut spec, "measure", |d| {
        json!(d.pick(&["LastByte", "FirstByte"]))
    });
    if spec
        .get("measure")
        .is_some_and(|measure| measure == "FirstByte")
    {
        dice.perhaps(&mut spec, "releaseSlot", |d| {
            json!(d.pick(&["LastByte", "FirstByte"]))
        });
    }
    dice.perhaps(&mut spec, "errors", |d| {
        let (http, grpc) = (d.pick(&["5xx", "429"]), d.pick(&["UNAVAILABLE", "ABORTED"]));
        json!({"httpStatuses": [http], "grpcStatuses": [grpc]})
    });
    dice.perhaps(&mut spec, "retries", |d| {
        let header = d.pick(&["X-Retry-Attempt", "x-stainless-retry-count"]);
        json!({"header": header, "firstAttempt": d.number(0, 1)})
    });
    // With `releaseSlot: FirstByte`, a slot is free after the first byte of a response, and nothing
    // later is measured.
    let is_streamed = spec.get("releaseSlot").is_none_or(|at| at == "LastByte");
    spec.insert("queue".into(), queue(dice, &outline, is_streamed));
    if spec["queue"]["mode"] == "Observe" && spec["parallelism"].get("auto").is_some() {
        // Observe mode holds no request back, so it can't be combined with automatic parallelism.
        spec.insert(
            "parallelism".into(),
            json!({"total": dice.number(1, 1_000_000)}),
        );
    }
    if let Some(parallelism) = spec["parallelism"].as_object_mut()
        && (is_streamed || dice.breaks())
    {
        dice.perhaps(parallelism, "tokens", tokens);
    }
    spec.insert("strategy".into(), strategy(dice, &outline));
    let types: Vec<Value> = outline
        .types
        .iter()
        .map(|name| query_type(dice, name, is_streamed))
        .collect();
    spec.insert("types".into(), json!(types));
    let rest = outline.classes.len().saturating_sub(1);
    let class = |(i, name): (usize, &&str)| {
        let mut class = Map::new();
        class.insert("name".into(), json!(name));
        if i < rest {
            let matches = json!([{"headers": [{"name": "x-class", "value": name}]}]);
            class.insert("matches".into(), matches);
        }
        dice.perhaps(&mut class, "value", value);
        Value::Object(class)
    };
    let classes: Vec<Value> = outline.classes.iter().enumerate().map(class).collect();
    spec.insert("classes".into(), json!(classes));
    dice.perhaps(
        &mut spec,
        "exclude",
        |_| json!([{"path": {"value": "/healthz"}}]),
    );
    // These settings don't depend on the strategy, so wrong values in each of them are tested with
    // only one strategy.
    if dice.slip.is_none() || strategy_type == "MaxQueueLength" {
        dice.perhaps(&mut spec, "workflows", workflows);
    }
    if rest > 0 && (dice.slip.is_none() || strategy_type == "MaxQueueWait") {
        let has_workflows = spec.contains_key("workflows");
        dice.perhaps(&mut spec, "classAdmission", |d| {
            class_admission(d, &outline, has_workflows)
        });
    }
    json!({
        "apiVersion": "headgate.dev/v1alpha1",
        "kind": "AdmissionPolicy",
        "metadata": {"name": "any"},
        "spec": spec,
    })
}

fn workflows(dice: &mut Dice) -> Value {
    let mut workflows = Map::new();
    let quantile = |d: &mut Dice| d.real(0.0, 1.0, (false, false));
    dice.perhaps(&mut workflows, "identifyBy", |d| {
        let mut sources = vec![match d.below_or_at(2) {
            0 => json!({"type": "Baggage", "baggage": {"key": d.name(&["workflow", "tenant"])}}),
            1 => json!({
                "type": "Header",
                "header": {"name": d.pick(&["X-Tenant", "x-headgate-workflow"])},
            }),
            _ => json!({"type": "Metadata", "metadata": {"path": ["jwt", "claims", "tenant"]}}),
        }];
        if d.one_in(2) {
            let at = if d.breaks() { 0 } else { 1 };
            sources.insert(at, json!({"type": "Type"}));
        }
        json!(sources)
    });
    dice.perhaps(&mut workflows, "quantile", quantile);
    dice.perhaps(&mut workflows, "interval", |d| d.ms(10, 10_000));
    dice.perhaps(&mut workflows, "rateTimeout", |d| {
        if d.breaks() {
            json!("19s")
        } else {
            d.ms(20_000, 3_600_000)
        }
    });
    dice.perhaps(&mut workflows, "maxWorkflows", |d| d.number(2, 1_000));
    dice.perhaps(&mut workflows, "maxQueueLength", |d| d.number(0, 10_000));
    dice.perhaps(&mut workflows, "edge", |d| json!(d.one_in(2)));
    dice.perhaps(&mut workflows, "sharing", sharing);
    let service = |d: &mut Dice| json!([{"name": "extent", "quantile": quantile(d)}]);
    dice.perhaps(&mut workflows, "services", service);
    dice.perhaps(&mut workflows, "named", |d| {
        let mut named = Map::new();
        named.insert(
            "name".into(),
            json!(d.pick(&["checkout", "any id", "_other"])),
        );
        d.perhaps(&mut named, "guarantee", |d| d.real(0.0, 1e9, (true, false)));
        d.perhaps(&mut named, "weight", |d| {
            d.real(0.01, 100.0, (false, false))
        });
        d.perhaps(&mut named, "quantile", quantile);
        d.perhaps(&mut named, "services", service);
        d.perhaps(&mut named, "deadline", |d| d.ms(1, 3_600_000));
        json!([named, {"name": "search"}])
    });
    dice.perhaps(&mut workflows, "peers", peers);
    dice.perhaps(&mut workflows, "outbound", outbound);
    Value::Object(workflows)
}

fn peers(dice: &mut Dice) -> Value {
    let peer = if dice.breaks() {
        "*"
    } else {
        "spiffe://mesh/ns/*"
    };
    json!([peer, "spiffe://mesh/ns/a/sa/b"])
}

fn outbound(dice: &mut Dice) -> Value {
    let cluster = if dice.breaks() {
        "a*b"
    } else {
        dice.pick(&["outbound|80||a", "a*", "*"])
    };
    let smoothing = |dice: &mut Dice| {
        let least = if dice.breaks() {
            "301ms"
        } else {
            dice.pick(&["0s", "100ms", "300ms"])
        };
        json!({"least": least, "most": "300ms"})
    };
    let mut service = Map::from_iter([
        ("cluster".to_owned(), json!(cluster)),
        ("name".to_owned(), json!("extent")),
    ]);
    dice.perhaps(&mut service, "smoothing", smoothing);
    json!({"services": [service], "smoothing": smoothing(dice)})
}

fn class_admission(dice: &mut Dice, outline: &Outline, has_workflows: bool) -> Value {
    let mut admission = Map::new();
    let mut targets = Map::new();
    for (i, name) in outline.classes.iter().enumerate() {
        if i + 1 < outline.classes.len() || dice.breaks() {
            targets.insert((*name).to_owned(), dice.ms(1, 3_600_000));
        }
    }
    admission.insert("targets".into(), Value::Object(targets));
    let percentile = |d: &mut Dice| d.real(0.0, 100.0, (false, true));
    dice.perhaps(&mut admission, "percentile", percentile);
    dice.perhaps(&mut admission, "perCost", |d| json!(d.one_in(2)));
    dice.perhaps(&mut admission, "distributed", |d| {
        let step = |d: &mut Dice| d.real(0.0, 1.0, (true, false));
        let mut steps = Map::new();
        d.perhaps(&mut steps, "increase", step);
        d.perhaps(&mut steps, "decrease", step);
        d.perhaps(&mut steps, "minProbability", step);
        Value::Object(steps)
    });
    if !has_workflows {
        dice.perhaps(&mut admission, "peers", peers);
        dice.perhaps(&mut admission, "outbound", outbound);
    }
    if dice.slip.is_some() || dice.one_in(2) {
        let method = if dice.breaks() {
            "Distributed"
        } else {
            "Centralized"
        };
        admission.insert("method".into(), json!(method));
        admission.insert("centralized".into(), centralized(dice));
    }
    Value::Object(admission)
}

fn centralized(dice: &mut Dice) -> Value {
    let mut central = Map::new();
    let method = dice.pick(&["Misses", "Incast"]);
    central.insert("method".into(), json!(method));
    if method == "Misses" || dice.breaks() {
        dice.perhaps(&mut central, "misses", |d| d.number(1, 1_000_000));
        dice.perhaps(&mut central, "period", |d| d.ms(100, 60_000));
    }
    if method == "Incast" || dice.breaks() {
        let past = |d: &mut Dice| d.real(0.0, 1.0, (false, true));
        dice.perhaps(&mut central, "smoothing", past);
    }
    // The interval of reports is at most the period.
    let longest = if method == "Misses" { 100 } else { 10_000 };
    dice.perhaps(&mut central, "report", |d| d.ms(10, longest));
    dice.perhaps(&mut central, "scope", |d| {
        json!(d.pick(&["Class", "Destination"]))
    });
    dice.perhaps(&mut central, "fallback", |d| {
        json!(d.pick(&["Distributed", "Admit"]))
    });
    Value::Object(central)
}

/// Returns the value of a type, or the factor of a class.
fn value(dice: &mut Dice) -> Value {
    dice.real(0.001, 1000.0, (false, false))
}

fn sharing(dice: &mut Dice) -> Value {
    let mut settings = Map::new();
    let probe = |d: &mut Dice| d.real(0.0, 1e6, (true, false));
    let share = |d: &mut Dice| d.real(0.0, 1.0, (true, false));
    dice.perhaps(&mut settings, "probe", probe);
    dice.perhaps(&mut settings, "maxUtilization", share);
    let (kind, block) = match dice.below_or_at(2) {
        0 => return json!({"type": "StaticGuarantees"}),
        1 => ("BottleneckFairness", "bottleneckFairness"),
        _ => {
            let report = dice.pick(&["orca", "serverTiming"]);
            let capacity = dice.real(0.0, 1e12, (true, false));
            let resource = json!({"capacity": capacity, report: {"metric": "db.rows"}});
            settings.insert("resource".into(), resource);
            ("DominantResource", "dominantResource")
        }
    };
    let kind = if dice.breaks() {
        "StaticGuarantees"
    } else {
        kind
    };
    json!({"type": kind, block: settings})
}

fn tokens(dice: &mut Dice) -> Value {
    let count = |dice: &mut Dice| {
        let mut count = Map::new();
        count.insert("otherwise".into(), json!(dice.number(0, 1_000_000_000)));
        let headers = ["Content-Length", "x-max-tokens"];
        dice.perhaps(&mut count, "header", |d| json!(d.pick(&headers)));
        dice.perhaps(&mut count, "perUnit", |d| json!(d.number(1, 1_000)));
        Value::Object(count)
    };
    let mut tokens = Map::new();
    tokens.insert("budget".into(), json!(dice.number(1, 1_000_000_000)));
    tokens.insert("prompt".into(), count(dice));
    dice.perhaps(&mut tokens, "output", count);
    dice.perhaps(&mut tokens, "perRequest", |d| {
        json!(d.number(1, 1_000_000_000))
    });
    Value::Object(tokens)
}

fn query_type(dice: &mut Dice, name: &str, is_streamed: bool) -> Value {
    let mut kind = Map::new();
    kind.insert("name".into(), json!(name));
    if name != "default" || dice.breaks() {
        kind.insert(
            "matches".into(),
            json!([{"path": {"value": format!("/{name}")}}]),
        );
    }
    if !dice.breaks() {
        let (p50, p90) = (dice.ms(1, 1_000), dice.ms(1_000, 3_600_000));
        let field = dice.pick(&["slo", "ttft"]);
        kind.insert(field.into(), json!({"p50": p50, "p90": p90, "p99.9": "1h"}));
        if dice.breaks() {
            kind.insert("slo".into(), json!({"p50": "1h"}));
            kind.insert("ttft".into(), json!({"p50": "1h"}));
        }
    }
    if is_streamed {
        dice.perhaps(&mut kind, "tpot", |d| json!({"p90": d.ms(1, 3_600_000)}));
    }
    dice.perhaps(&mut kind, "value", value);
    dice.perhaps(
        &mut kind,
        "cost",
        |d| json!({"size": {"header": d.pick(&["Content-Length", "x-rows"])}}),
    );
    dice.perhaps(&mut kind, "onRefusal", |d| {
        let value = d.pick(&["small", "a b"]);
        json!({"set": [{"name": d.pick(&["X-Model", "x-other"]), "value": value}]})
    });
    Value::Object(kind)
}

fn queue(dice: &mut Dice, outline: &Outline, is_streamed: bool) -> Value {
    let mut queue = Map::new();
    dice.perhaps(&mut queue, "maxLength", |d| d.number(0, 1_000_000));
    dice.perhaps(&mut queue, "timeout", |d| d.ms(1, 3_600_000));
    let discipline = match dice.pick(&DISCIPLINES) {
        "Priority" if outline.classes.is_empty() && !dice.breaks() => "FIFO",
        discipline => discipline,
    };
    queue.insert("discipline".into(), json!(discipline));
    if discipline == "FIFO" || dice.breaks() {
        dice.perhaps(&mut queue, "mode", |d| json!(d.pick(&["Hold", "Observe"])));
    }
    if let "DRR" | "WFQ" = discipline {
        let mut fair = Map::new();
        let by = match dice.pick(&["Type", "Class", "Workflow"]) {
            "Class" if outline.classes.is_empty() && !dice.breaks() => "Type",
            by => by,
        };
        let names = match by {
            "Type" => &outline.types,
            "Class" if !outline.classes.is_empty() => &outline.classes,
            _ => &vec!["checkout", "any id"],
        };
        fair.insert("by".into(), json!(by));
        if discipline == "DRR" {
            dice.perhaps(&mut fair, "quantum", |d| d.ms(1, 60_000));
        }
        dice.perhaps(&mut fair, "weights", |d| {
            d.by_name(names, 0, |d| d.real(0.01, 100.0, (false, false)))
        });
        if discipline == "WFQ" && (is_streamed || dice.breaks()) {
            dice.perhaps(&mut fair, "tokens", |d| {
                let mut cost = Map::new();
                for name in ["input", "output"] {
                    d.perhaps(&mut cost, name, |d| d.real(0.0, 1000.0, (false, false)));
                }
                Value::Object(cost)
            });
        }
        queue.insert(discipline.to_ascii_lowercase(), Value::Object(fair));
    }
    Value::Object(queue)
}

fn strategy(dice: &mut Dice, outline: &Outline) -> Value {
    let mut settings = Map::new();
    let mut tells_types_apart = false;
    let block = match outline.strategy {
        "Bouncer" => {
            tells_types_apart = true;
            if dice.one_in(2) {
                sliding(dice, &mut settings);
            } else {
                dice.perhaps(&mut settings, "interval", |d| d.ms(10, 3_600_000));
            }
            dice.perhaps(&mut settings, "minSamples", |d| d.number(1, 1_000_000));
            dice.perhaps(&mut settings, "logic", |d| json!(d.pick(&["Any", "All"])));
            dice.perhaps(&mut settings, "shedByValue", |d| json!(d.one_in(2)));
            "bouncer"
        }
        "MaxQueueWait" => {
            let limit = dice.ms(1, 3_600_000);
            settings.insert("limit".into(), limit);
            let limits = dice.by_name(&outline.types, 0, |d| d.ms(1, 3_600_000));
            tells_types_apart = limits.as_object().is_some_and(|l| !l.is_empty());
            settings.insert("limits".into(), limits);
            dice.window(&mut settings);
            "maxQueueWait"
        }
        "AcceptFraction" => {
            accept_fraction(dice, &mut settings);
            "acceptFraction"
        }
        "ResponseTimeController" => {
            let scope = dice.pick(&["Type", "Policy"]);
            tells_types_apart = scope == "Type";
            response_time_controller(dice, outline, scope, &mut settings);
            "responseTimeController"
        }
        "BacklogControl" => {
            backlog_control(dice, outline, &mut settings);
            "backlogControl"
        }
        _ => "",
    };
    let mut strategy = Map::new();
    strategy.insert("type".into(), json!(outline.strategy));
    if !block.is_empty() {
        strategy.insert(block.into(), Value::Object(settings));
    }
    if (outline.strategy == "Bouncer" || dice.breaks()) && dice.one_in(2) {
        let mut settings = Map::new();
        accept_fraction(dice, &mut settings);
        strategy.insert("acceptFraction".into(), Value::Object(settings));
    }
    if tells_types_apart || dice.breaks() {
        dice.perhaps(&mut strategy, "starvationAvoidance", |d| {
            starvation_avoidance(d, &outline.types)
        });
    }
    Value::Object(strategy)
}

fn accept_fraction(dice: &mut Dice, settings: &mut Map<String, Value>) {
    let share = |d: &mut Dice| d.real(0.0, 1.0, (true, false));
    dice.perhaps(settings, "maxUtilization", share);
    let units = |d: &mut Dice| d.real(0.0, 1_000_000.0, (true, false));
    dice.perhaps(settings, "processingUnits", units);
    dice.window(settings);
}

/// Sets an interval that is a whole number of steps.
fn sliding(dice: &mut Dice, settings: &mut Map<String, Value>) {
    let step = u64::from(10 + dice.below_or_at(1_000));
    let steps = match dice.slips() {
        Some(variant) => [1, 101][variant % 2],
        None => u64::from(2 + dice.below_or_at(98)),
    };
    let rest = u64::from(dice.breaks());
    let text = |ms| json!(Duration::from(Span::from_millis(ms)).to_string());
    settings.insert("interval".into(), text(step * steps + rest));
    let window = json!({"type": "Sliding", "step": text(step)});
    settings.insert("window".into(), window);
}

fn starvation_avoidance(dice: &mut Dice, types: &[&'static str]) -> Value {
    let mut settings = Map::new();
    dice.window(&mut settings);
    if dice.one_in(2) {
        let share = |d: &mut Dice| d.real(0.0, 1.0, (false, false));
        dice.perhaps(&mut settings, "allowance", share);
        let allowances = dice.by_name(types, 0, share);
        settings.insert("allowances".into(), allowances);
        json!({"type": "AcceptanceAllowance", "acceptanceAllowance": settings})
    } else {
        let alpha = |d: &mut Dice| d.real(0.0, 1.0, (true, false));
        dice.perhaps(&mut settings, "alpha", alpha);
        json!({"type": "HelpingTheUnderserved", "helpingTheUnderserved": settings})
    }
}

fn response_time_controller(
    dice: &mut Dice,
    outline: &Outline,
    scope: &str,
    settings: &mut Map<String, Value>,
) {
    settings.insert("scope".into(), json!(scope));
    if dice.one_in(2) || (scope == "Policy" && !dice.breaks()) {
        let target = dice.ms(1, 3_600_000);
        settings.insert("target".into(), target);
    }
    let percentiles = if dice.breaks() {
        [0.0, 100.0, 42.0]
    } else {
        [50.0, 90.0, 99.9]
    };
    let percentile = percentiles[dice.below_or_at(2) as usize];
    settings.insert("percentile".into(), json!(percentile));
    if !outline.classes.is_empty() || dice.breaks() {
        let names = if outline.classes.is_empty() {
            &CLASSES[..]
        } else {
            &outline.classes
        };
        let targets = dice.by_name(names, 0, |d| d.ms(1, 3_600_000));
        settings.insert("classTargets".into(), targets);
        if scope == "Type" || dice.breaks() {
            let targets = dice.by_name(&outline.types, 0, |d| {
                d.by_name(names, 0, |d| d.ms(1, 3_600_000))
            });
            settings.insert("typeTargets".into(), targets);
        }
        let divisor = |d: &mut Dice| d.real(1.0, 1e6, (true, false));
        dice.perhaps(settings, "lowerClassDecrease", divisor);
        dice.perhaps(settings, "lowerClassPatience", |d| d.number(0, 1_000_000));
    }
    dice.perhaps(settings, "smoothing", |d| d.real(0.0, 1.0, (false, true)));
    dice.perhaps(settings, "requests", |d| d.number(1, 10_000));
    dice.perhaps(settings, "timeout", |d| d.ms(10, 3_600_000));
    dice.perhaps(settings, "increaseBelow", |d| {
        d.real(-1.0, -0.2, (true, false))
    });
    dice.perhaps(settings, "increaseOffset", |d| {
        d.real(-0.1, 10.0, (false, false))
    });
    dice.perhaps(settings, "decreaseAbove", |d| {
        d.real(-0.1, 10.0, (false, false))
    });
    dice.perhaps(settings, "increase", |d| d.real(0.0, 1e6, (true, false)));
    dice.perhaps(settings, "decrease", |d| d.real(1.0, 1e6, (true, false)));
    dice.perhaps(settings, "minRate", |d| {
        d.real(0.001, 2000.0, (false, false))
    });
    dice.perhaps(settings, "maxRate", |d| d.real(2000.0, 1e6, (false, false)));
    dice.perhaps(settings, "degradation", |d| {
        let mut degradation = Map::new();
        d.perhaps(&mut degradation, "minQuality", |d| {
            d.real(0.0, 1.0, (true, true))
        });
        d.perhaps(&mut degradation, "decrease", |d| {
            d.real(1.0, 1e6, (true, false))
        });
        d.perhaps(&mut degradation, "increase", |d| {
            d.real(0.0, 1.0, (true, false))
        });
        d.perhaps(&mut degradation, "admission", |d| json!(d.one_in(2)));
        Value::Object(degradation)
    });
}

fn backlog_control(dice: &mut Dice, outline: &Outline, settings: &mut Map<String, Value>) {
    let target = dice.ms(10, 3_600_000);
    settings.insert("target".into(), target);
    dice.perhaps(settings, "period", |d| d.ms(10, 3_600_000));
    let control = dice.pick(&["Backlog", "QueueLength", "Proportional"]);
    settings.insert("control".into(), json!(control));
    let number = |d: &mut Dice| d.real(0.0, 1e12, (true, false));
    if dice.one_in(2) {
        let gain = number(dice);
        settings.insert("proportionalGain".into(), gain);
        if control != "Proportional" || dice.breaks() {
            let gain = number(dice);
            settings.insert("integralGain".into(), gain);
        }
    }
    if control != "Proportional" {
        dice.perhaps(settings, "maxBacklog", number);
    }
    dice.perhaps(settings, "hint", |d| json!(d.one_in(2)));
    dice.perhaps(settings, "cost", |d| match d.below_or_at(2) {
        0 => json!({"type": "Measured"}),
        1 => json!({"type": "Header", "header": d.pick(&["X-Cost", "x-headgate-cost"])}),
        _ => {
            let costs = d.by_name(&outline.types, 1, |d| d.number(1, 1 << 24));
            json!({"type": "Type", "costs": costs})
        }
    });
}
