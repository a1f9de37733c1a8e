use super::types::{COLUMNS, objective};
use super::*;
use crate::top::view::{Objective, Percentiles, ProxyRow, State, Traffic, TypeRow};

fn kind(name: &str, arrivals: f64, refused: f64, p99: f64) -> TypeRow {
    TypeRow {
        kind: name.to_owned(),
        traffic: Traffic {
            arrival_rate: Some(arrivals),
            refused_rate: Some(refused),
            ..Traffic::default()
        },
        queue_wait_ms: Some(Percentiles { p50: 1.0, p99 }),
        hurt: refused,
        ..TypeRow::default()
    }
}

fn policy(name: &str, types: Vec<TypeRow>) -> PolicyRow {
    let sum = |part: fn(&TypeRow) -> f64| types.iter().map(part).sum::<f64>();
    PolicyRow {
        policy: name.to_owned(),
        proxies: 1,
        hurt: sum(|t| t.hurt),
        traffic: Traffic {
            arrival_rate: Some(sum(|t| t.traffic.arrival_rate.unwrap())),
            refused_rate: Some(sum(|t| t.traffic.refused_rate.unwrap())),
            ..Traffic::default()
        },
        types,
        ..PolicyRow::default()
    }
}

fn view() -> View {
    View {
        policies: vec![
            policy(
                "shop/search",
                vec![
                    kind("fast", 100.0, 10.0, 5.0),
                    kind("slow", 20.0, 9.0, 80.0),
                ],
            ),
            policy("shop/mail", vec![kind("default", 500.0, 40.0, 20.0)]),
        ],
        ..View::default()
    }
}

fn keys(choice: &Choice) -> Vec<String> {
    let grid = Grid::new(&view(), choice);
    grid.rows.into_iter().map(|r| r.key).collect()
}

#[test]
fn what_hurts_most_comes_first_unless_somebody_wants_otherwise() {
    let order = |order| Choice {
        order,
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
    let grid = Grid::new(&view(), &Choice::default());
    let heads = |width: u16| -> Vec<&str> {
        let fit = grid.fit(width, 2);
        fit.iter().map(|c| grid.columns[c.0].head).collect()
    };
    assert_eq!(heads(1_000).len(), COLUMNS.len());
    let narrow = heads(70);
    assert!(
        !narrow.contains(&"RESPONSE p99") && !narrow.contains(&"REASONS"),
        "{narrow:?}"
    );
    assert!(narrow.contains(&"WAIT p99"), "{narrow:?}");
    let never = ["POLICY / TYPE", "ARRIVE/s", "REFUSE/s", "OBJECTIVE"];
    assert_eq!(heads(5), never);
}

#[test]
fn the_tightest_objective_is_shown() {
    let one = |name: &str, target, attainment| Objective {
        objective: name.to_owned(),
        response_time_ms: Some(72.0),
        target: Some(target),
        attainment,
    };
    let met = [
        one("p50", 0.5, Some(0.9)),
        one("p99_9", 0.999, Some(0.9995)),
    ];
    let cell = objective(&met);
    assert_eq!(cell.content, "p99.9 72ms: 99.95% >= 99.9%");
    assert_eq!(cell.style, GOOD);
    let missed = [one("p50", 0.5, Some(0.25)), one("p90", 0.9, Some(0.89))];
    let cell = objective(&missed);
    assert_eq!(cell.content, "p50 72ms: 25% < 50%");
    assert_eq!(cell.style, BAD);
    assert_eq!(objective(&[one("p50", 0.5, None)]).content, "-");
}

#[test]
fn silent_proxies_come_first() {
    let row = |name: &str, state, hurt| ProxyRow {
        proxy: name.to_owned(),
        state,
        hurt,
        problem: (state == State::Unreachable).then(|| "nothing listens there".to_owned()),
        silent_seconds: Some(12.3),
        ..ProxyRow::default()
    };
    let view = View {
        proxies: vec![
            row("a:1", State::Answers, 5.0),
            row("b:1", State::Unreachable, 0.0),
        ],
        ..View::default()
    };
    let choice = Choice {
        tab: Tab::Proxies,
        ..Choice::default()
    };
    let grid = Grid::new(&view, &choice);
    assert_eq!(grid.rows[0].key, "b:1");
    let last = grid.rows[0].cells.last().unwrap();
    assert_eq!(last.content, "nothing listens there (for 12s)");
}
