use serde_json::json;

use super::*;
use crate::cells::silence;
use crate::view::total;

fn kind(name: &str, arrivals: f64, refused: f64, p99: f64) -> Value {
    json!({
        "type": name, "arrivalRate": arrivals, "refusedRate": refused, "hurt": refused,
        "queueWaitMs": {"p50": 1.0, "p99": p99},
    })
}

fn policy(name: &str, types: &[Value]) -> Value {
    json!({
        "policy": name, "proxies": 1, "hurt": total(types, "hurt"), "workflows": null,
        "traffic": {
            "arrivalRate": total(types, "arrivalRate"),
            "refusedRate": total(types, "refusedRate"),
        },
        "types": types,
    })
}

fn view() -> Value {
    let search = [
        kind("fast", 100.0, 10.0, 5.0),
        kind("slow", 20.0, 9.0, 80.0),
    ];
    let mail = [kind("default", 500.0, 40.0, 20.0)];
    json!({"policies": [policy("shop/search", &search), policy("shop/mail", &mail)]})
}

fn keys(choice: &Choice) -> Vec<String> {
    rows(&view(), choice).into_iter().map(|r| r.key).collect()
}

#[test]
fn the_worst_rows_come_first_by_default() {
    let order = |sort| Choice {
        sort,
        ..Choice::default()
    };
    let mail = ["shop/mail", "shop/mail default"];
    let search = ["shop/search", "shop/search fast", "shop/search slow"];
    let slow_first = ["shop/search", "shop/search slow", "shop/search fast"];
    assert_eq!(keys(&order(Order::Hurt)), [&mail[..], &search].concat());
    assert_eq!(
        keys(&order(Order::Refused)),
        [&slow_first[..], &mail].concat()
    );
    assert_eq!(keys(&order(Order::Wait)), [&slow_first[..], &mail].concat());
    assert_eq!(keys(&order(Order::Name)), [&mail[..], &search].concat());
    let reversed = Choice {
        reversed: true,
        ..order(Order::Rate)
    };
    assert_eq!(keys(&reversed), [&slow_first[..], &mail].concat());
}

#[test]
fn a_filter_takes_policies_whole_or_some_of_their_types() {
    let filter = |text: &str| Choice {
        filter: text.to_owned(),
        ..Choice::default()
    };
    assert_eq!(keys(&filter("SEARCH")).len(), 3);
    assert_eq!(keys(&filter("slo")), ["shop/search", "shop/search slow"]);
    assert!(keys(&filter("nothing of the kind")).is_empty());
}

#[test]
fn columns_go_where_there_is_no_room() {
    let view = view();
    let rows = rows(&view, &Choice::default());
    let heads = |width: u16| {
        let (table, _) = table(Tab::Types, &rows, width, 2);
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, 1));
        table.render(buffer.area, &mut buffer);
        lines(&buffer).remove(0)
    };
    assert!(heads(1_000).ends_with("RESPONSE p99"));
    let narrow = heads(70);
    assert!(narrow.contains("WAIT p99"), "{narrow}");
    assert!(
        !narrow.contains("RESP") && !narrow.contains("REASONS"),
        "{narrow}"
    );
    assert_eq!(heads(5), "POLIC");
}

#[test]
fn silent_proxies_come_first() {
    let row = |name: &str, state, hurt, problem: Option<&str>| {
        json!({
            "proxy": name, "state": state, "hurt": hurt, "policies": [], "problem": problem,
            "silentSeconds": problem.map(|_| 12.3),
        })
    };
    let silent = row("b:1", "Unreachable", 0.0, Some("nothing listens there"));
    let view = json!({"proxies": [row("a:1", "Answers", 5.0, None), silent]});
    let choice = Choice {
        view: Some(Tab::Proxies),
        ..Choice::default()
    };
    let first = &rows(&view, &choice)[0];
    assert_eq!(first.key, "b:1");
    let problem = silence(first.values).unwrap();
    assert_eq!(problem, "nothing listens there (for 12s)");
}

#[test]
fn a_table_without_rows_says_what_is_known() {
    let silent = json!({"proxies": [{"name": "a", "state": UNREACHABLE}]});
    assert_eq!(
        Tab::Types.empty(&silent),
        "No reachable proxy has a policy."
    );
    let up = json!({"proxies": [{"name": "a", "state": "Up"}]});
    assert_eq!(Tab::Types.empty(&up), "No policy is in force.");
}
