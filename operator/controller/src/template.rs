//! Templates of YAML documents in Jinja's syntax.
//!
//! Every value is written as JSON, which is YAML, so no text can break out of its scalar.

use std::net::IpAddr;
use std::path::Path;

use anyhow::anyhow;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value};

/// Returns `template` with `values`. Errors name `name` and the line.
///
/// # Errors
/// If the template uses a variable that `values` lacks, or a path that isn't UTF-8.
pub(crate) fn render(
    name: &str,
    template: &str,
    values: impl Into<Value>,
) -> anyhow::Result<String> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Json);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_test("address", |host: &str| host.parse::<IpAddr>().is_ok());
    environment.add_filter("folder", folder);
    let rendered = environment.render_named_str(name, template, values);
    let rendered = rendered.map_err(|e| anyhow!("can't write YAML; paths must be UTF-8: {e}"))?;
    Ok(rendered + "\n")
}

/// Returns the folder of `file`, for a directory that Envoy watches.
fn folder(file: &str) -> String {
    let parent = Path::new(file).parent();
    let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).display().to_string()
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    #[test]
    fn values_are_json_and_none_may_lack() {
        let values = || context! { text => "a\"\n'b: {{ c }}", absent => None::<u8>, n => 1 };
        let rendered = render(
            "t",
            "{{ text }} {{ n }}{% if absent %}x{% endif %}",
            values(),
        );
        assert_eq!(rendered.unwrap(), "\"a\\\"\\n'b: {{ c }}\" 1\n");
        for template in [
            "\n{{ other }}",
            "\n{% if other %}{% endif %}",
            "\n{{ n.other }}",
        ] {
            let error = render("t", template, values()).unwrap_err().to_string();
            assert!(error.ends_with(": undefined value (in t:2)"), "{error}");
        }
    }
}
