//! The configuration of the parts of a stage, such as its query types, with its checks.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::place::{Checked, HOUR_US, Place};
use super::{DEFAULT_TYPE, FIXED_HEADERS, MAX_CLASSES, MAX_ERRORS, MAX_TOKENS, Match};

/// The range of the values of types and classes, and of the tokens for each unit of a header's
/// value.
const VALUES: RangeInclusive<f64> = 0.001..=1000.0;

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Bounds of the number of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoParallelism {
    /// The minimum number of slots, 1 ..= `max`.
    pub min: u32,
    /// The maximum number of slots, 1 ..= 1,000,000.
    pub max: u32,
}

/// A budget of tokens, and the source of the number of tokens that each request takes while it has
/// a slot. A request takes the tokens of its prompt and its output, at least 1 and at most the
/// whole budget. Once outputs are known, a request takes the usual output of its type instead of
/// its maximum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokensConfig {
    /// The budget of this proxy, above 0, at most [`MAX_TOKENS`]. It is rounded down, but not below
    /// 1.
    pub budget: f64,
    /// The tokens of a request's prompt. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<TokenCount>,
    /// The maximum tokens of a request's output. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<TokenCount>,
    /// The maximum tokens of one request. Absent: the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_request: Option<u32>,
}

/// The source of a number of tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenCount {
    /// Lower case name of the header whose value, a whole number, grows with the tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Tokens for each unit of the value, 0.001 to 1000.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub per_unit: f64,
    /// Tokens of a request without a readable header.
    pub otherwise: u32,
}

impl TokensConfig {
    /// Returns the budget, in whole tokens.
    pub fn whole_budget(&self) -> u32 {
        (self.budget as u32).clamp(1, MAX_TOKENS)
    }

    /// Returns the maximum number of tokens of a request, and the number of those that are its
    /// prompt. `prompt` and `output` are the values of the request's headers.
    pub fn of(&self, prompt: Option<u32>, output: Option<u32>) -> (u32, u32) {
        let of = |count: &Option<TokenCount>, value: Option<u32>| match (count, value) {
            (None, _) => 0.0,
            (Some(count), Some(value)) => f64::from(value) * count.per_unit,
            (Some(count), None) => count.otherwise.into(),
        };
        let prompt = of(&self.prompt, prompt);
        let most = self.per_request.unwrap_or(MAX_TOKENS).max(1);
        // The cast turns a float that is too large into the largest integer.
        let whole = |tokens: f64| tokens.ceil() as u32;
        let tokens = whole(prompt + of(&self.output, output)).clamp(1, most);
        (tokens, whole(prompt).min(tokens))
    }
}

/// Whether decisions take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Mode {
    /// Requests are refused and queued.
    #[default]
    Enforce,
    /// Decisions are counted, but no request is refused or queued.
    DryRun,
}

/// A moment in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Measure {
    // The end of the headers, body or trailers, whichever comes last.
    /// The last byte of the response.
    #[default]
    LastByte,
    /// The first byte of the response's body, for gRPC of the first message; the end of a response
    /// without a body. Headers don't count: streaming servers send them before they work.
    FirstByte,
}

/// The responses that count as errors of the backend. These responses free their slot and are
/// counted, but their processing times are not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorsConfig {
    /// First and last of each range of HTTP statuses, 100 to 599.
    pub http: Vec<(u16, u16)>,
    /// gRPC statuses, 1 to 16.
    pub grpc: Vec<u8>,
}

impl Default for ErrorsConfig {
    /// Returns the default: 5xx, `DEADLINE_EXCEEDED`, `RESOURCE_EXHAUSTED`, `INTERNAL` and
    /// `UNAVAILABLE`.
    fn default() -> Self {
        Self {
            http: vec![(500, 599)],
            grpc: vec![4, 8, 13, 14],
        }
    }
}

impl ErrorsConfig {
    /// Whether a response with this HTTP status is an error.
    pub fn has_http(&self, status: u16) -> bool {
        self.http
            .iter()
            .any(|&(first, last)| (first..=last).contains(&status))
    }

    /// Whether a response with this gRPC status is an error.
    pub fn has_grpc(&self, status: u8) -> bool {
        self.grpc.contains(&status)
    }
}

/// A header that numbers attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetriesConfig {
    /// Lower case name.
    pub header: String,
    /// The number of a first attempt. A request with a greater number is a retry.
    #[serde(default, skip_serializing_if = "is_default")]
    pub first_attempt: u32,
}

/// A query type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypeConfig {
    /// The type's name in stats, headers and access logs: `[A-Za-z0-9_-]{1,63}`.
    pub name: String,
    /// The conditions, of which a request of this type meets any. Empty only for `default`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// Response time objectives, ascending by percentile. May be empty if the strategy needs none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slo: Vec<Objective>,
    /// The moment at which the processing time of requests of this type ends. Absent: the stage's
    /// `measure` applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure: Option<Measure>,
    /// Objectives for the time per output token, ascending by percentile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tpot: Vec<Objective>,
    /// Value of one response within the objectives, relative to that of other types: 0.001 to 1000.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub value: f64,
    /// The cost of a request by its size. Absent: all requests of the type are expected to cost the
    /// same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<RequestCost>,
    /// Headers to set on a request that would be refused, at most 8. The request then continues
    /// without a slot, by the route that matches these headers. Empty: the request is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_refusal: Vec<SetHeader>,
}

impl Default for TypeConfig {
    /// Returns a type without a name or objectives that matches all requests.
    fn default() -> Self {
        Self {
            name: String::new(),
            matches: Vec::new(),
            slo: Vec::new(),
            measure: None,
            tpot: Vec::new(),
            value: one(),
            cost: None,
            on_refusal: Vec::new(),
        }
    }
}

/// A header that a request gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SetHeader {
    // The operator writes lower case.
    /// Name, case-insensitive; letters, digits and `-`.
    pub name: String,
    /// Value, 1 to 256 bytes.
    pub value: String,
}

// The cost is `a + b · size`, where a and b are measured.
/// A cost that grows with the size of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RequestCost {
    /// The source of the size.
    pub size: RequestSize,
}

/// The source of a request's size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RequestSize {
    // The operator writes lower case.
    /// Name of the request header with the size, such as `content-length`; case-insensitive. The
    /// value must be a whole number. A request without the header counts as an average request of
    /// its type. Clients that can set the header influence their own admission.
    pub header: String,
}

pub(super) const fn one() -> f64 {
    1.0
}

fn is_one(value: &f64) -> bool {
    value.to_bits() == 1.0_f64.to_bits()
}

/// A class: requests of the same value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassConfig {
    /// The class's name in stats: `[A-Za-z0-9_-]{1,63}`.
    pub name: String,
    /// The conditions. A request of this class meets at least one of them. Empty only for the last
    /// class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// Factor of the types' values for requests of this class: 0.001 to 1000.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub value: f64,
}

/// One objective, for response times or for times per output token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// Percentile, 0 < p < 100, e.g. 50 or 99.9.
    pub percentile: f64,
    /// Time that `percentile` percent of the type's requests must not exceed, µs.
    pub objective_us: u64,
}

/// Checks the classes of a stage, or of a called service.
pub(super) fn check_classes(classes: &[ClassConfig], at: &Place) -> Checked {
    at.at_most("classes", classes.len(), MAX_CLASSES)?;
    for (i, class) in classes.iter().enumerate() {
        let at = at.item("classes", i);
        let (last, matches) = (i + 1 == classes.len(), class.matches.len());
        check_name(&at, &class.name)?;
        at.within("value", class.value, VALUES)?;
        at.ensure("matches", (matches == 0) == last, || {
            format!("{matches} matches; the last class has none, every other class one or more")
        })?;
    }
    let list = ("classes", "name");
    at.unique(list, classes, |class| &class.name, "names of classes")
}

fn check_name(at: &Place, name: &str) -> Checked {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_right = (1..=63).contains(&name.len()) && name.chars().all(plain);
    at.ensure("name", is_right, || {
        format!("{name:?}; 1 to 63 of a-z A-Z 0-9 - _")
    })
}

impl TokensConfig {
    pub(super) fn check(&self, at: &Place) -> Checked {
        at.positive("budget", self.budget, MAX_TOKENS.into())?;
        if let Some(most) = self.per_request {
            at.within("per_request", most, 1..=MAX_TOKENS)?;
        }
        for (name, count) in [("prompt", &self.prompt), ("output", &self.output)] {
            let (Some(count), at) = (count, at.field(name)) else {
                continue;
            };
            if let Some(header) = &count.header {
                at.header_name("header", header)?;
            }
            at.within("per_unit", count.per_unit, VALUES)?;
            at.within("otherwise", count.otherwise, 0..=MAX_TOKENS)?;
        }
        Ok(())
    }
}

impl ErrorsConfig {
    pub(super) fn check(&self, at: &Place) -> Checked {
        at.at_most("http", self.http.len(), MAX_ERRORS)?;
        at.at_most("grpc", self.grpc.len(), MAX_ERRORS)?;
        for (first, last) in &self.http {
            let is_right = 100 <= *first && first <= last && *last <= 599;
            let problem = || format!("{first} to {last}; a range within 100 to 599");
            at.ensure("http", is_right, problem)?;
        }
        let mut grpc = self.grpc.iter();
        grpc.try_for_each(|&status| at.within("grpc", status, 1..=16))
    }
}

impl TypeConfig {
    pub(super) fn check(&self, at: &Place, last: bool) -> Checked {
        check_name(at, &self.name)?;
        let (name, matches) = (&self.name, self.matches.len());
        at.ensure("name", (name == DEFAULT_TYPE) == last, || {
            format!(
                "{name:?}; {DEFAULT_TYPE:?} for the last type, another name for every other type"
            )
        })?;
        at.ensure("matches", (matches == 0) == last, || {
            format!("{matches} matches; {DEFAULT_TYPE:?} has none, every other type one or more")
        })?;
        at.within("value", self.value, VALUES)?;
        if let Some(cost) = &self.cost {
            at.header_name("cost.size.header", &cost.size.header)?;
        }
        at.at_most("on_refusal", self.on_refusal.len(), 8)?;
        for (i, SetHeader { name, value }) in self.on_refusal.iter().enumerate() {
            let at = at.item("on_refusal", i);
            at.header_name("name", name)?;
            let is_free = !FIXED_HEADERS.contains(&name.as_str());
            at.ensure("name", is_free, || {
                format!("{name:?}; none of {}", FIXED_HEADERS.join(", "))
            })?;
            let is_right = !value.is_empty() && !value.chars().any(char::is_control);
            at.ensure("value", is_right, || {
                format!("{value:?}; a header value of 1 byte or more, without control characters")
            })?;
        }
        check_objectives(&self.slo, at, "slo")?;
        check_objectives(&self.tpot, at, "tpot")
    }
}

fn check_objectives(objectives: &[Objective], at: &Place, field: &str) -> Checked {
    let mut previous = 0.0;
    for (i, o) in objectives.iter().enumerate() {
        let (at, p) = (at.item(field, i), o.percentile);
        at.ensure("percentile", p > previous && p < 100.0, || {
            format!("{p}; above {previous}, below 100, in ascending order")
        })?;
        previous = p;
        at.within("objective_us", o.objective_us, 1..=HOUR_US)?;
    }
    at.at_most(field, objectives.len(), 16)
}
