//! The services that the application calls, from arguments.

use std::collections::BTreeMap;

use headgate_controller::endpoint::Endpoint;

/// The names of other clusters in the bootstrap, which a service must not have.
const TAKEN: [&str; 3] = ["upstream", "headgate_xds", "headgate_admin"];

/// Parses `NAME=HOST:PORT`.
pub(super) fn parse(text: &str) -> Result<(String, Endpoint), String> {
    let Some((name, endpoint)) = text.split_once('=') else {
        return Err("write NAME=HOST:PORT, such as cart=10.0.0.7:8080".to_owned());
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || !name.chars().all(plain) {
        return Err(format!(
            "{name:?} is no host name, which calls have in Host; a-z A-Z 0-9 . - and _ only"
        ));
    }
    if TAKEN.contains(&name) {
        return Err(format!(
            "{name:?} is the name of another cluster in the bootstrap; choose another"
        ));
    }
    let endpoint = endpoint
        .parse::<Endpoint>()
        .map_err(|error| error.to_string())?;
    Ok((name.to_owned(), endpoint.on_this_machine()))
}

/// Returns the endpoints by name. The endpoints of a name are in the order given.
pub(super) fn by_name(services: &[(String, Endpoint)]) -> BTreeMap<String, Vec<Endpoint>> {
    let mut named: BTreeMap<String, Vec<Endpoint>> = BTreeMap::new();
    for (name, endpoint) in services {
        named
            .entry(name.clone())
            .or_default()
            .push(endpoint.clone());
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_name_are_one_service() {
        let read = |text: &str| parse(text).unwrap();
        let services = by_name(&[read("b=h:2"), read("a.shop=127.0.0.1:1"), read("b=h:1")]);
        let text: Vec<_> = services
            .iter()
            .map(|(name, e)| format!("{name} {} {}", e.len(), e[0]))
            .collect();
        assert_eq!(text, ["a.shop 1 127.0.0.1:1", "b 2 h:2"]);
        for (wrong, why) in [
            ("cart", "NAME=HOST:PORT"),
            ("=h:1", "no host name"),
            ("a b=h:1", "no host name"),
            ("a=h", "HOST:PORT"),
            ("upstream=h:1", "another cluster"),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
