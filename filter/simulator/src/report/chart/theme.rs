//! Colours of figures and pages, light and dark. The hues are those of Okabe and Ito, which people
//! with any common colour blindness can distinguish. For contrast with the page, the hues of the
//! light theme are darkened, and those of the dark theme are lightened.

/// The number of colours of series; further series reuse these colours.
pub const COLOURS: usize = 8;

/// The CSS rules for any page or file with figures.
pub const CSS: &str = r"
:root{--bg:#fff;--panel:#f6f8fa;--fg:#1f2328;--muted:#59636e;--grid:#dfe3e8;--edge:#d1d9e0;--good:#00805d;--bad:#c0305f;
--c0:#0072b2;--c1:#c24e00;--c2:#00805d;--c3:#a8558a;--c4:#a86f00;--c5:#5b5bd6;--c6:#5f6873;--c7:#8a5a3c}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--panel:#151b23;--fg:#e6edf3;--muted:#9198a1;--grid:#262d36;--edge:#3d444d;
--good:#2bc493;--bad:#ff7b9c;
--c0:#56b4e9;--c1:#ff9a4d;--c2:#2bc493;--c3:#d693ba;--c4:#f0b840;--c5:#a5a5ff;--c6:#aab2bb;--c7:#d3a07e}}
svg{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue','DejaVu Sans',sans-serif}
svg text{fill:var(--fg);font-size:12px}
svg .tick{fill:var(--muted);font-size:12px}
svg .name{fill:var(--fg);font-size:12px}
svg .halo{paint-order:stroke;stroke:var(--bg);stroke-width:4px;stroke-linejoin:round}
svg .grid{stroke:var(--grid);stroke-width:1}
svg .axis{stroke:var(--muted);stroke-width:1}
svg .event{stroke:var(--muted);stroke-width:1;stroke-dasharray:2 3}
svg .level{stroke:var(--fg);stroke-width:1.2;stroke-dasharray:7 4;opacity:.7}
svg .line{fill:none;stroke:var(--c);stroke-width:1.9;stroke-linejoin:round;stroke-linecap:round}
svg .dashed{stroke-dasharray:5 5}
svg .dot{fill:var(--c);stroke:var(--bg);stroke-width:.8}
svg .hollow{fill:var(--bg);stroke:var(--c);stroke-width:1.6}
svg .c0{--c:var(--c0)} svg .c1{--c:var(--c1)} svg .c2{--c:var(--c2)} svg .c3{--c:var(--c3)}
svg .c4{--c:var(--c4)} svg .c5{--c:var(--c5)} svg .c6{--c:var(--c6)} svg .c7{--c:var(--c7)}
";
