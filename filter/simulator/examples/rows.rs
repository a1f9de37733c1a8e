//! scratch
use headgate_simulator::scenario::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let r = by_name(&a[1])
        .unwrap()
        .run(&Size::default(), &Silent)
        .unwrap();
    for f in &r.figures {
        for s in &f.series {
            println!(
                "{} {}: {:?}",
                f.title,
                s.name,
                s.points
                    .iter()
                    .map(|p| p.y.map(|y| (y * 10.0).round() / 10.0).unwrap_or(-1.0))
                    .collect::<Vec<_>>()
            );
        }
    }
}
