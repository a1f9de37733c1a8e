//! A report as an HTML page: one file, without network access or scripts, with a light and a dark
//! theme.

use std::fmt::Write as _;

use super::chart::{escape, svg, theme};
use super::{Cell, Claim, Figure, Report, Table, Verdict};

const PAGE_CSS: &str = r"
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',sans-serif}
main{max-width:1320px;margin:0 auto;padding:24px 20px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px} h2{font-size:19px;margin:36px 0 8px}
p{max-width:90ch;margin:6px 0} .muted{color:var(--muted)}
.verdict{display:inline-block;border:1px solid var(--edge);border-left:5px solid var(--good);background:var(--panel);border-radius:6px;padding:8px 14px;margin:14px 0}
.verdict.fails{border-left-color:var(--bad)} .verdict ul{margin:4px 0 2px;padding-left:20px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 18px;margin:14px 0;font-size:14px}
dt{color:var(--muted)} dd{margin:0}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,520px),1fr));gap:20px 28px}
figure{margin:0} figcaption{font-size:15px;font-weight:600;margin:6px 0} figure p{font-size:13px;color:var(--muted)}
svg{width:100%;height:auto;display:block}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:8px 0;font-size:14px}
th,td{padding:4px 12px;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child{text-align:left} th{font-weight:600;color:var(--muted);font-size:13px}
tr.group th{color:var(--fg);font-size:14px;padding-top:14px;text-align:left}
th.left{text-align:left} td.left{text-align:left;white-space:normal;max-width:70ch} td small{color:var(--muted)}
.ok{color:var(--good);font-weight:600} .no{color:var(--bad);font-weight:600}
";

/// Returns the report as an HTML page.
pub fn html(report: &Report) -> String {
    let title = escape(&report.title);
    let mut out = String::with_capacity(64 * 1024);
    // Writing to a String does not fail.
    let _ = write!(
        out,
        r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title><style>{}{PAGE_CSS}</style></head><body><main>
<h1>{title}</h1><p class="muted">Simulated by Headgate: the engine that decides in Envoy, in simulated time.</p>
"#,
        theme::CSS
    );
    verdict(&mut out, &report.verdict());
    setup(&mut out, report);
    claims(&mut out, &report.claims);
    figures(&mut out, &report.figures);
    for table in &report.tables {
        draw_table(&mut out, table);
    }
    out.push_str("</main></body></html>\n");
    out
}

fn verdict(out: &mut String, verdict: &Verdict) {
    let Some(summary) = verdict.summary() else {
        return;
    };
    let class = if verdict.holds() {
        "verdict"
    } else {
        "verdict fails"
    };
    let _ = write!(out, r#"<div class="{class}"><b>{}</b>"#, escape(&summary));
    if !verdict.failures.is_empty() {
        out.push_str("<ul>");
        for failure in &verdict.failures {
            let _ = write!(out, "<li>{}</li>", escape(failure));
        }
        out.push_str("</ul>");
    }
    out.push_str("</div>\n");
}

fn setup(out: &mut String, report: &Report) {
    out.push_str("<dl>");
    for (name, value) in &report.setup {
        let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    out.push_str("</dl>\n");
    for note in &report.notes {
        let _ = writeln!(out, r#"<p class="muted">{}</p>"#, escape(note));
    }
}

fn claims(out: &mut String, claims: &[Claim]) {
    if claims.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Claims</h2><div class=\"scroll\"><table><tr><th></th><th class=\"left\">claim</th>\
         <th class=\"left\">expected</th><th class=\"left\">found</th></tr>",
    );
    for claim in claims {
        let _ = write!(
            out,
            r#"<tr><td>{}</td><td class="left">{}</td><td class="left">{}</td><td class="left">{}</td></tr>"#,
            mark(claim.holds),
            escape(&claim.text),
            escape(&claim.paper),
            escape(&claim.ours)
        );
    }
    out.push_str("</table></div>\n");
}

/// Returns the mark of a verdict, which doesn't rely on colour alone.
fn mark(holds: Option<bool>) -> &'static str {
    match holds {
        Some(true) => r#"<span class="ok">✓ holds</span>"#,
        Some(false) => r#"<span class="no">✗ fails</span>"#,
        None => "not judged",
    }
}

fn figures(out: &mut String, figures: &[Figure]) {
    if figures.is_empty() {
        return;
    }
    out.push_str("<h2>Figures</h2><div class=\"figures\">\n");
    for figure in figures {
        let _ = write!(
            out,
            "<figure><figcaption>{}</figcaption>{}",
            escape(&figure.title),
            svg(figure)
        );
        if !figure.caption.is_empty() {
            let _ = write!(out, "<p>{}</p>", escape(&figure.caption));
        }
        out.push_str("</figure>\n");
    }
    out.push_str("</div>\n");
}

fn draw_table(out: &mut String, table: &Table) {
    let _ = write!(
        out,
        "<h2>{}</h2><div class=\"scroll\"><table><tr>",
        escape(&capitalised(&table.title))
    );
    for column in &table.columns {
        let _ = write!(out, "<th>{}</th>", escape(column));
    }
    out.push_str("</tr>");
    for group in &table.groups {
        if !group.title.is_empty() {
            let (span, title) = (table.columns.len(), escape(&group.title));
            let _ = write!(
                out,
                r#"<tr class="group"><th colspan="{span}">{title}</th></tr>"#
            );
        }
        for row in &group.rows {
            let _ = write!(out, "<tr><td>{}</td>", escape(&row.label));
            for cell in &row.cells {
                draw_cell(out, cell);
            }
            out.push_str("</tr>");
        }
    }
    out.push_str("</table></div>\n");
}

fn draw_cell(out: &mut String, cell: &Cell) {
    let ours = escape(&cell.ours());
    let (holds, beside) = match cell {
        Cell::Compared(compared) => (compared.holds(), Some(compared.printed.clone())),
        Cell::Limited(limited) => (Some(limited.holds()), Some(format!("≤ {}", limited.limit))),
        Cell::Empty | Cell::Text(_) | Cell::Number(..) => (None, None),
    };
    let Some(beside) = beside else {
        let _ = write!(out, "<td>{ours}</td>");
        return;
    };
    let ours = match holds {
        Some(false) => format!(r#"<span class="no">{ours} ✗</span>"#),
        Some(true) | None => ours,
    };
    let _ = write!(out, "<td>{ours} <small>({})</small></td>", escape(&beside));
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(char::to_uppercase).into_iter().flatten();
    first.chain(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Compared, Group, Subject, TableRow};

    #[test]
    fn a_page_says_what_failed_and_needs_nothing_from_elsewhere() {
        let mut report = Report::new(Subject::Scenario("x".into()), "Title & more");
        report.setup("types", "<fast>");
        report.claims.push(Claim {
            text: "levels off".into(),
            paper: "about 40 ms".into(),
            ours: "55 ms".into(),
            holds: Some(false),
        });
        report.tables.push(Table {
            title: "rejected".into(),
            columns: vec!["factor".into(), "slow".into()],
            groups: vec![Group {
                title: "Bouncer".into(),
                rows: vec![TableRow {
                    label: "1.5".into(),
                    cells: vec![Cell::Compared(Compared {
                        ours: Some(90.0),
                        decimals: 2,
                        expected: 98.46,
                        printed: "98.46".into(),
                        within: Some(3.0),
                    })],
                }],
            }],
        });
        report.figures.push(Figure::default());
        let page = html(&report);
        assert!(page.contains("Title &amp; more") && page.contains("&lt;fast&gt;"));
        assert!(page.contains(r#"<span class="no">90.00 ✗</span> <small>(98.46)</small>"#));
        assert!(page.contains("0 of 2 results are as expected; the others:"));
        assert!(page.contains("✗ fails"));
        for elsewhere in ["<script", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
    }
}
