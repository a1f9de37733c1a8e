//! scratch
use headgate_simulator::scenario::*;
fn main() {
    for n in std::env::args().skip(1) {
        let t = std::time::Instant::now();
        let r = by_name(&n).unwrap().run(&Size::default(), &Silent).unwrap();
        println!("{}", headgate_simulator::report::text::text(&r));
        eprintln!("{:?}", t.elapsed());
    }
}
