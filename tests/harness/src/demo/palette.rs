//! Colours of charts and report, light and dark. The hues are those of Okabe and Ito, which people
//! with any common colour blindness can distinguish. The hues of the dark theme are lightened for
//! contrast with the page.

/// The CSS rules that any page or picture with these charts needs.
pub const CSS: &str = r#"
:root{--bg:#fff;--panel:#f6f8fa;--fg:#1f2328;--muted:#59636e;--grid:#d9dee3;--edge:#d1d9e0;
--p50:#0072b2;--p90:#c24e00;--good:#00805d;--bad:#c0305f;--refused:#a8558a;
--t0:#0072b2;--t1:#00805d;--t2:#b87700;--t3:#a8558a}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--panel:#151b23;--fg:#e6edf3;--muted:#9198a1;--grid:#2a313a;--edge:#3d444d;
--p50:#56b4e9;--p90:#ff9a4d;--good:#2bc493;--bad:#ff7b9c;--refused:#d693ba;
--t0:#56b4e9;--t1:#2bc493;--t2:#f0b840;--t3:#d693ba}}
svg{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","DejaVu Sans",sans-serif}
svg text{fill:var(--fg);font-size:12px}
svg .tick{fill:var(--muted);font-size:12px}
svg .halo{paint-order:stroke;stroke:var(--bg);stroke-width:4px;stroke-linejoin:round}
svg .grid{stroke:var(--grid);stroke-width:1}
svg .axis{stroke:var(--muted);stroke-width:1}
svg .event{stroke:var(--muted);stroke-width:1;stroke-dasharray:2 3}
svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
svg .area{stroke:none}
svg .p50{stroke:var(--p50)} svg .p90{stroke:var(--p90)}
svg .objective{stroke-width:1.5;stroke-dasharray:6 4}
svg .t0{stroke:var(--t0)} svg .t1{stroke:var(--t1)} svg .t2{stroke:var(--t2)} svg .t3{stroke:var(--t3)}
svg .offered{stroke:var(--muted);stroke-width:1.2}
svg .answered{fill:var(--good);fill-opacity:.75}
svg .refused{fill:var(--refused);fill-opacity:.28}
svg .limit{stroke:var(--fg);stroke-width:1.3;stroke-dasharray:6 4}
svg .dot0{fill:var(--t0)} svg .dot1{fill:var(--t1)} svg .dot2{fill:var(--t2)} svg .dot3{fill:var(--t3)}
svg .head{font-size:15px;font-weight:600} svg .sub{fill:var(--muted)}
"#;
