use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::style::Modifier;

use super::*;
use crate::top::grid::Tab;
use crate::top::text::lines;
use crate::top::view::{
    Bottleneck, Objective, Percentiles, PolicyRow, ProxyRow, Traffic, TypeRow, WorkflowRow,
    Workflows,
};

fn view() -> View {
    let traffic = |arrivals: f64, refused: f64| Traffic {
        arrival_rate: Some(arrivals),
        accepted_rate: Some(arrivals - refused),
        refused_rate: Some(refused),
        would_refuse_rate: Some(0.0),
        completed_rate: Some(arrivals - refused),
        refused_by_reason: [("slo_p50".to_owned(), refused)].into(),
    };
    let kind = |name: &str, arrivals, refused, attainment| TypeRow {
        kind: name.to_owned(),
        traffic: traffic(arrivals, refused),
        queue_wait_ms: Some(Percentiles {
            p50: 1.5,
            p99: 39.0,
        }),
        response_time_ms: Some(Percentiles {
            p50: 70.0,
            p99: 147.0,
        }),
        objectives: vec![Objective {
            objective: "p50".to_owned(),
            response_time_ms: Some(72.0),
            target: Some(0.5),
            attainment: Some(attainment),
        }],
        hurt: refused,
    };
    let checkout = WorkflowRow {
        workflow: "checkout".to_owned(),
        demand_rate: Some(100.0),
        offered_rate: Some(100.0),
        limit_rate: Some(75.0),
        admitted_rate: Some(75.0),
        rate_limited_rate: Some(25.0),
        deadline_rate: Some(0.0),
        refused_rate: Some(25.0),
        would_refuse_rate: Some(0.0),
        queue_length: Some(4),
        wait_ms: Some(Percentiles {
            p50: 0.2,
            p99: 12.0,
        }),
        completion_ms: Some(23.4),
        bottlenecks: vec![Bottleneck {
            place: "extent-node".to_owned(),
            proxies: 1,
        }],
        hurt: 25.0,
        ..WorkflowRow::default()
    };
    View {
        time: "2026-03-01T12:30:05Z".to_owned(),
        window_seconds: 10.0,
        proxies: vec![
            ProxyRow {
                proxy: "127.0.0.1:9901".to_owned(),
                state: State::Answers,
                node: "search-1".to_owned(),
                version: "1.40.0".to_owned(),
                uptime_seconds: Some(1_637),
                policies: vec!["shop/search".to_owned()],
                ..ProxyRow::default()
            },
            ProxyRow {
                proxy: "127.0.0.1:9902".to_owned(),
                state: State::Unreachable,
                problem: Some("nothing listens there".to_owned()),
                silent_seconds: Some(12.0),
                ..ProxyRow::default()
            },
        ],
        policies: vec![PolicyRow {
            policy: "shop/search".to_owned(),
            proxies: 1,
            slots: Some(4),
            slots_in_use: Some(4),
            queue_length: Some(2),
            traffic: traffic(125.4, 46.9),
            types: vec![
                kind("slow", 40.0, 24.3, 0.2151),
                kind("default", 85.4, 22.6, 1.0),
            ],
            hurt: 71.9,
            workflows: Some(Workflows {
                known: Some(1),
                folded_rate: Some(3.0),
                rates_refused_rate: Some(0.0),
                rates_expired_rate: Some(0.0),
                rows: vec![checkout],
            }),
            ..PolicyRow::default()
        }],
    }
}

fn drawn(screen: &mut Screen, (width, height): (u16, u16), colours: bool) -> Buffer {
    let view = view();
    let grid = Grid::new(&view, &screen.choice);
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| draw(frame, &view, &grid, screen, colours))
        .unwrap();
    terminal.backend().buffer().clone()
}

fn shown(screen: &mut Screen, size: (u16, u16)) -> String {
    lines(&drawn(screen, size, true)).join("\n")
}

#[test]
fn types_in_a_wide_terminal() {
    insta::assert_snapshot!(shown(&mut Screen::default(), (150, 12)));
}

#[test]
fn types_in_a_narrow_terminal() {
    insta::assert_snapshot!(shown(&mut Screen::default(), (80, 12)));
}

#[test]
fn workflows() {
    let mut screen = Screen::default();
    screen.choice.tab = Tab::Workflows;
    insta::assert_snapshot!(shown(&mut screen, (150, 12)));
}

#[test]
fn proxies() {
    let mut screen = Screen::default();
    screen.choice.tab = Tab::Proxies;
    insta::assert_snapshot!(shown(&mut screen, (150, 12)));
}

#[test]
fn help_and_the_filter_that_is_typed() {
    let mut screen = Screen {
        help: true,
        ..Screen::default()
    };
    insta::assert_snapshot!(shown(&mut screen, (80, 18)));
    screen.help = false;
    let grid = Grid::new(&view(), &screen.choice);
    for key in ['/', 's', 'l', 'o'] {
        screen.key(KeyEvent::from(KeyCode::Char(key)), &grid);
    }
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
            for help in [false, true] {
                let mut screen = Screen {
                    help,
                    ..Screen::default()
                };
                drawn(&mut screen, (width, height), true);
            }
        }
    }
}

#[test]
fn what_is_bad_can_be_seen_without_colours() {
    let styles = |colours| {
        let buffer = drawn(&mut Screen::default(), (150, 12), colours);
        let lines = lines(&buffer);
        let row = lines.iter().position(|l| l.starts_with("  slow")).unwrap();
        let column = lines[row].find("p50 72ms").unwrap();
        let cell = buffer[(column as u16, row as u16)].clone();
        let coloured = buffer
            .content
            .iter()
            .any(|c| c.fg != Color::Reset || c.bg != Color::Reset);
        (cell, coloured)
    };
    let (bad, coloured) = styles(true);
    assert!(coloured && bad.fg == Color::Red);
    let (bad, coloured) = styles(false);
    assert!(!coloured);
    assert!(bad.modifier.contains(Modifier::REVERSED | Modifier::BOLD));
}

#[test]
fn the_marked_row_is_seen_when_there_is_room_for_one() {
    let mut screen = Screen::default();
    let grid = Grid::new(&view(), &screen.choice);
    screen.key(KeyEvent::from(KeyCode::End), &grid);
    // Two heads, a silent proxy, the columns' heads, one row, the foot.
    let buffer = drawn(&mut screen, (100, 6), true);
    let lines = lines(&buffer);
    assert!(lines[4].starts_with("  default"), "{lines:#?}");
    assert!(buffer[(0, 4)].modifier.contains(Modifier::REVERSED));
}
