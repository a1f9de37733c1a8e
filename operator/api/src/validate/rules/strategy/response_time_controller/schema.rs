//! The API server's checks of `ResponseTimeController`.

use super::super::super::names::all_known;
use super::PERCENTILE;
use super::targets::{NO_OBJECTIVE, NO_TARGET_OF_POLICY};
use crate::validate::rules::schema::{self as cel, Rule, SchemaField, some};
use headgate_core::config::{ControlScope, MAX_CONTROLLERS, ResponseTimeControllerConfig};

const PATH: &str = ".strategy.responseTimeController";

pub(in crate::validate::rules) fn schema(spec: &mut SchemaField<'_>) {
    settings(&mut spec.at("strategy.responseTimeController"));
    classes(spec);
    targets(spec);
}

fn settings(settings: &mut SchemaField<'_>) {
    let [with, without] = [
        ResponseTimeControllerConfig::figure_4,
        ResponseTimeControllerConfig::adaptive,
    ]
    .map(|defaults| defaults(ControlScope::Type, Vec::new()));
    let or = |field: &str, with: f64, without: f64| {
        format!("(has(self.{field}) ? self.{field} : has(self.increase) ? {with:?} : {without:?})")
    };
    let below = or("increaseBelow", with.increase_below, without.increase_below);
    let most = or("maxRate", with.max_rate, without.max_rate);
    let rule = Rule::words(
        format!(
            "!({} && {}) || ({below} > -1.0 && {below} <= self.increaseOffset && \
                 {below} <= self.decreaseAbove)",
            settings.right("increaseOffset"),
            settings.right("decreaseAbove"),
        ),
        "%s; above -1, at most increaseOffset (%s) and decreaseAbove (%s)",
        &[
            &format!("string({below})"),
            "string(self.increaseOffset)",
            "string(self.decreaseAbove)",
        ],
    );
    settings.rule(rule.on(".increaseBelow"));
    let rule = Rule::words(
        format!(
            "!({} && {}) || {most} >= self.minRate",
            settings.right("minRate"),
            settings.within("maxRate", &most),
        ),
        "%s; at least minRate (%s)",
        &[&format!("string({most})"), "string(self.minRate)"],
    );
    settings.rule(rule.on(".maxRate"));
}

fn classes(spec: &mut SchemaField<'_>) {
    let classes = some("self.classes");
    let settings = "self.strategy.responseTimeController";
    let given = format!("has({settings})");
    let type_targets = some(&format!("{settings}.typeTargets"));
    let names = format!("{settings}.typeTargets");
    let condition = format!("{given} && {type_targets} && {classes}");
    let odd = format!(
        "{names}.filter(t, !sets.contains(self.classes.map(c, c.name), {names}[t].map(k, k)))"
    );
    let (condition, first) = (
        format!("{condition} && size({odd}) > 0"),
        format!("{names}[{odd}[0]]"),
    );
    let rule = all_known(&condition, &first, "class", "self.classes");
    spec.rule(rule.on(&format!("{PATH}.typeTargets")));
    let number = "(has(self.classes) && size(self.classes) > 1 ? size(self.classes) : 1)";
    let count = format!("size(self.types) * {number}");
    let is_by_type = format!("(!{given} || {settings}.scope == 'Type')");
    spec.rule(
        Rule::value(
            format!(
                "self.strategy.type != 'ResponseTimeController' || !{is_by_type} || \
                 {count} <= {MAX_CONTROLLERS}"
            ),
            &cel::format(
                "Type with %s types and %s classes",
                &["string(size(self.types))", &format!("string({number})")],
            ),
            format!("at most {MAX_CONTROLLERS} controllers; scope Policy has one for all types"),
        )
        .on(&format!("{PATH}.scope")),
    );
}

/// Adds the rule about the sources of targets. Without a target for all requests, each class must
/// have a target, or each type must have an objective at the percentile, or a target for each class
/// without a target.
fn targets(spec: &mut SchemaField<'_>) {
    let settings = "self.strategy.responseTimeController";
    let is_open = format!(
        "(!has({settings}) || !has({settings}.target) && !({} && has({settings}.classTargets) && \
         self.classes.all(c, c.name in {settings}.classTargets)))",
        some("self.classes")
    );
    let open = |scope: &str| {
        let in_scope = match scope {
            "Policy" => format!("has({settings}) && {settings}.scope == 'Policy'"),
            _ => format!("(!has({settings}) || {settings}.scope == 'Type')"),
        };
        format!("self.strategy.type == 'ResponseTimeController' && {in_scope} && {is_open}")
    };
    let target = format!("{PATH}.target");
    let rule = Rule::text(format!("!({})", open("Policy")), NO_TARGET_OF_POLICY);
    spec.rule(rule.on(&target).required());
    let percentile = format!("(has({settings}) ? {settings}.percentile : {PERCENTILE:?})");
    let has = |field: &str| {
        format!(
            "has({field}) && {field}.exists(k, k.matches('^p[0-9]+([.][0-9]+)?$') && \
             double(k.substring(1)) == {percentile})"
        )
    };
    let has_objective = format!("{} || {}", has("t.slo"), has("t.ttft"));
    let (open, shown) = (open("Type"), format!("string({percentile})"));
    let has_own = format!(
        "{} && has({settings}.typeTargets) && t.name in {settings}.typeTargets && \
         self.classes.all(c, c.name in {settings}.typeTargets[t.name] || \
         has({settings}.classTargets) && c.name in {settings}.classTargets)",
        some("self.classes")
    );
    let has_target = format!("({has_objective} || has({settings}) && {has_own})");
    let any = format!("self.types.exists(t, {has_target})");
    let all = format!("self.types.all(t, {has_target})");
    spec.rule(
        Rule::words(
            format!("!({open}) || {any}"),
            "missing; one for all types, such as 500ms, or p%s in each type's slo",
            &[&shown],
        )
        .on(&target)
        .required(),
    );
    spec.rule(
        Rule::words(
            format!("!({open}) || !{any} || {all}"),
            &format!("no p%s; {NO_OBJECTIVE}"),
            &[&shown],
        )
        .on(".types")
        .required(),
    );
}
