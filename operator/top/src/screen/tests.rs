use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};
use serde_json::json;

use super::*;
use crate::table::{Order, lines};

fn view() -> Value {
    let traffic = |arrivals: f64, refused: f64| {
        json!({
            "arrivalRate": arrivals, "acceptedRate": arrivals - refused, "refusedRate": refused,
            "wouldRefuseRate": 0.0, "completedRate": arrivals - refused,
            "refusedByReason": {"slo_p50": refused},
        })
    };
    let kind = |name: &str, arrivals, refused, attainment| {
        let mut kind = traffic(arrivals, refused);
        kind["type"] = name.into();
        kind["queueWaitMs"] = json!({"p50": 1.5, "p99": 39.0});
        kind["responseTimeMs"] = json!({"p50": 70.0, "p99": 147.0});
        kind["objectives"] = json!([{
            "objective": "p50", "responseTimeMs": 72.0, "target": 0.5, "attainment": attainment,
        }]);
        kind["hurt"] = refused.into();
        kind
    };
    let checkout = json!({
        "workflow": "checkout", "demandRate": 100.0, "offeredRate": 100.0, "limitRate": 75.0,
        "admittedRate": 75.0, "rateLimitedRate": 25.0, "deadlineRate": 0.0, "refusedRate": 25.0,
        "wouldRefuseRate": 0.0, "queueLength": 4, "waitMs": {"p50": 0.2, "p99": 12.0},
        "completionMs": 23.4, "bottlenecks": [{"place": "extent-node", "proxies": 1}],
        "hurt": 25.0,
    });
    json!({
        "time": "2026-03-01T12:30:05Z",
        "windowSeconds": 10.0,
        "proxies": [
            {
                "proxy": "127.0.0.1:9901", "state": "Answers", "node": "search-1",
                "version": "1.40.0", "uptimeSeconds": 1_637, "restarts": 0, "hurt": 0.0,
                "policies": ["shop/search"], "slots": null,
            },
            {
                "proxy": "127.0.0.1:9902", "state": "Unreachable", "restarts": 0, "slots": null,
                "problem": "nothing listens there", "silentSeconds": 12.0, "policies": [],
            },
        ],
        "policies": [{
            "policy": "shop/search", "proxies": 1, "slots": 4, "slotsInUse": 4, "queueLength": 2,
            "traffic": traffic(125.4, 46.9), "hurt": 71.9,
            "types": [
                kind("slow", 40.0, 24.3, 0.2151), kind("default", 85.4, 22.6, 1.0),
            ],
            "workflows": {
                "known": 1, "foldedRate": 3.0, "ratesRefusedRate": 0.0, "ratesExpiredRate": 0.0,
                "demandRate": 100.0, "offeredRate": 100.0, "admittedRate": 75.0,
                "refusedRate": 25.0, "queueLength": 4, "hurt": 25.0, "rows": [checkout],
            },
        }],
    })
}

fn screen() -> Screen {
    Screen {
        view: view(),
        ..Screen::default()
    }
}

/// Returns a screen of proxies `row 0`, `row 1`, and so on.
fn proxies(count: usize) -> Screen {
    let row = |at| json!({"proxy": format!("row {at}"), "state": "Answers", "policies": []});
    let mut screen = screen();
    screen.view = json!({"proxies": (0..count).map(row).collect::<Vec<_>>()});
    press(&mut screen, &[KeyCode::Char('3')]);
    screen
}

fn drawn(screen: &mut Screen, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn shown(screen: &mut Screen, size: (u16, u16)) -> String {
    lines(&drawn(screen, size)).join("\n")
}

fn press(screen: &mut Screen, keys: &[KeyCode]) {
    for key in keys {
        assert!(screen.key(KeyEvent::from(*key)), "{key}");
    }
}

#[test]
fn types_in_a_wide_terminal() {
    insta::assert_snapshot!(shown(&mut screen(), (150, 12)));
}

#[test]
fn types_in_a_narrow_terminal() {
    insta::assert_snapshot!(shown(&mut screen(), (80, 12)));
}

#[test]
fn workflows() {
    let mut screen = screen();
    press(&mut screen, &[KeyCode::Char('2')]);
    insta::assert_snapshot!(shown(&mut screen, (150, 12)));
}

#[test]
fn proxies_of_the_fleet() {
    let mut screen = screen();
    press(&mut screen, &[KeyCode::Char('3')]);
    insta::assert_snapshot!(shown(&mut screen, (150, 12)));
}

#[test]
fn the_cut_through_the_slots_that_types_ask_for() {
    let mut screen = screen();
    let all = json!({"slotsAsked": 30.0, "slotsGiven": 20.0});
    let kind = |name: &str, density, before, asked, admitted| {
        json!({"type": name, "valueCut": {
            "perSlotSecond": density, "slotsBefore": before, "slotsAsked": asked,
            "admitted": admitted, "ofAll": all,
        }})
    };
    screen.view["policies"][0]["valueCut"] = all.clone();
    screen.view["policies"][0]["types"] = json!([
        kind("slow", 12.5, 21.0, 9.0, 0.0),
        kind("fast", 216.0, 0.0, 2.0, 1.0),
        kind("rare", 150.0, 2.0, 0.05, 1.0),
        kind("medium", 20.6, 2.05, 18.95, 0.947),
        kind("new", 0.0, 30.0, 0.0, 1.0),
    ]);
    press(&mut screen, &[KeyCode::Char('4')]);
    insta::assert_snapshot!(shown(&mut screen, (120, 12)));
}

#[test]
fn the_filter_is_seen_while_it_is_typed() {
    let mut screen = screen();
    press(&mut screen, &['/', 's', 'l', 'o'].map(KeyCode::Char));
    let text = shown(&mut screen, (80, 12));
    assert!(text.contains("names with: slo"), "{text}");
    assert!(
        text.contains("  slow") && !text.contains("  default"),
        "{text}"
    );
}

#[test]
fn no_size_is_too_small() {
    for width in 1..40 {
        for height in 1..10 {
            drawn(&mut screen(), (width, height));
        }
    }
}

#[test]
fn bad_values_are_marked_without_colours() {
    let buffer = drawn(&mut screen(), (150, 12));
    let lines = lines(&buffer);
    let row = lines.iter().position(|l| l.starts_with("  slow")).unwrap();
    let column = lines[row].find("p50 72ms").unwrap();
    let bad = &buffer[(column as u16, row as u16)];
    assert_eq!(bad.fg, Color::Red);
    assert!(bad.modifier.contains(Modifier::UNDERLINED | Modifier::BOLD));
}

#[test]
fn the_marked_row_is_seen_when_there_is_room_for_one() {
    let mut screen = screen();
    press(&mut screen, &[KeyCode::End]);
    // The rows are two for the heads, one for a silent proxy, one for the columns' heads, one of
    // the table, and two for keys.
    let buffer = drawn(&mut screen, (100, 7));
    let lines = lines(&buffer);
    assert!(lines[4].starts_with("  default"), "{lines:#?}");
    assert!(buffer[(0, 4)].modifier.contains(Modifier::REVERSED));
}

#[test]
fn keys_choose_what_is_shown() {
    let mut screen = screen();
    press(&mut screen, &[KeyCode::Char('2'), KeyCode::Char('s')]);
    assert_eq!(screen.choice.tab(), Tab::Workflows);
    assert_eq!(screen.choice.sort, Order::Rate);
    press(&mut screen, &[KeyCode::Tab, KeyCode::Tab, KeyCode::Tab]);
    assert_eq!(screen.choice.tab(), Tab::Types);
    press(&mut screen, &[KeyCode::Char('s'); 4]);
    assert_eq!(screen.choice.sort, Order::Hurt);
    press(&mut screen, &[KeyCode::Char('r'), KeyCode::Char('p')]);
    assert!(screen.choice.reversed && screen.paused);
    assert!(!screen.key(KeyEvent::from(KeyCode::Char('q'))));
}

#[test]
fn a_filter_is_typed() {
    let mut screen = screen();
    press(&mut screen, &['/', 'q', '2'].map(KeyCode::Char));
    assert_eq!(screen.choice.filter, "q2");
    press(&mut screen, &[KeyCode::Backspace, KeyCode::Enter]);
    assert_eq!(screen.choice.filter, "q");
    press(
        &mut screen,
        &[KeyCode::Char('/'), KeyCode::Char('x'), KeyCode::Esc],
    );
    assert_eq!(screen.choice.filter, "");
    let quit = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(!screen.key(quit));
}

#[test]
fn the_marked_row_stays_in_sight() {
    let mut screen = proxies(10);
    // The rows besides the table's are two for the heads, one for the columns' heads, and two for
    // keys.
    let first = |screen: &mut Screen, room: u16| {
        drawn(screen, (60, room + 5));
        screen.table.offset()
    };
    assert_eq!(first(&mut screen, 4), 0);
    press(&mut screen, &[KeyCode::End]);
    assert_eq!(first(&mut screen, 4), 6);
    press(&mut screen, &[KeyCode::PageUp]);
    assert_eq!(first(&mut screen, 4), 5);
    assert_eq!(screen.table.selected(), Some(5));
    press(&mut screen, &[KeyCode::Home, KeyCode::Up]);
    assert_eq!(first(&mut screen, 4), 0);
    assert_eq!(screen.table.selected(), Some(0));
    // A larger window shows more rows. If all rows fit, the first row is visible.
    press(&mut screen, &[KeyCode::End]);
    first(&mut screen, 4);
    assert_eq!(first(&mut screen, 20), 0);
}

#[test]
fn one_proxy_is_chosen_in_their_list() {
    let mut screen = proxies(3);
    drawn(&mut screen, (60, 9));
    press(&mut screen, &[KeyCode::Enter]);
    assert_eq!(screen.only, None, "none is marked");
    // This filter hides all rows.
    press(&mut screen, &[KeyCode::Home, KeyCode::Char('/')]);
    press(
        &mut screen,
        &"no such row".chars().map(KeyCode::Char).collect::<Vec<_>>(),
    );
    press(&mut screen, &[KeyCode::Enter]);
    drawn(&mut screen, (60, 9));
    press(&mut screen, &[KeyCode::Enter]);
    assert_eq!(screen.only, None);
    press(&mut screen, &[KeyCode::Esc]);
    press(&mut screen, &[KeyCode::Char('3')]);
    drawn(&mut screen, (60, 9));
    press(&mut screen, &[KeyCode::Char('p'), KeyCode::Down]);
    press(&mut screen, &[KeyCode::Down, KeyCode::Enter]);
    assert_eq!(screen.only.as_deref(), Some("row 1"));
    assert_eq!(screen.choice.tab(), Tab::Types);
    assert!(!screen.paused, "the pause kept the values of all proxies");
    press(&mut screen, &[KeyCode::Esc]);
    assert_eq!(screen.only, None);
}
