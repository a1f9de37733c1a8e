//! JSON lines of an access log (`json_format`). Users choose the fields' names. The known names are
//! those of Istio, of Envoy Gateway and of Envoy's command operators, and similar names. Case and
//! punctuation are ignored, because variants of a name often differ only in case and punctuation.
//! An unknown name is treated as the name of a request header.

use serde_json::{Map, Value};

use super::fields::{Fields, millis, present};
use super::{Passed, timestamp};

/// Reads a line.
pub(super) fn fields(line: &str) -> Result<Fields, Passed> {
    let Ok(Value::Object(object)) = serde_json::from_str(line) else {
        return Err(Passed::Unknown);
    };
    let mut fields = Fields::default();
    read(&object, &mut fields);
    Ok(fields)
}

fn read(object: &Map<String, Value>, fields: &mut Fields) {
    for (name, value) in object {
        if let Value::Object(headers) = value {
            // Some formats put request headers into a nested object.
            if plain(name).contains("header") && !plain(name).contains("response") {
                read(headers, fields);
            }
            continue;
        }
        let Some(text) = text(value) else { continue };
        field(name, &text, fields);
    }
}

fn field(name: &str, text: &str, fields: &mut Fields) {
    match plain(name).as_str() {
        "starttime" | "timestamp" | "time" => fields.start_ns = timestamp::nanos(text),
        "duration" | "durationms" | "requestduration" | "requestdurationms" => {
            fields.duration_ms = millis(text);
        }
        "upstreamservicetime" | "upstreamservicetimems" | "xenvoyupstreamservicetime" => {
            fields.upstream_ms = millis(text);
        }
        "upstreamhost" => fields.reached_upstream = Some(present(text).is_some()),
        // This field is less reliable than the upstream host, because Envoy may replace the
        // upstream's answer.
        "responsecodedetails" => {
            let via_upstream = text == "via_upstream";
            fields.reached_upstream.get_or_insert(via_upstream);
        }
        "method" | "requestmethod" => fields.request.method = present(text).map(str::to_owned),
        // This is the path that the client sent. The filter sees this path, because the router
        // rewrites the path afterwards.
        "xenvoyoriginalpath" | "xenvoyoriginpath" => {
            let path = present(text).map(str::to_owned);
            fields.request.path = path.or(fields.request.path.take());
        }
        "path" | "requestpath" | "urlpath" => {
            let path = present(text).map(str::to_owned);
            fields.request.path = fields.request.path.take().or(path);
        }
        "routename" | "route" => fields.request.route = present(text).map(str::to_owned),
        _ => {
            if let Some(value) = present(text) {
                let name = name.trim_start_matches(':').to_ascii_lowercase();
                let name = name.replace('_', "-");
                fields.request.headers.push((name, value.to_owned()));
            }
        }
    }
}

/// Returns the letters and digits of `name`, in lower case.
fn plain(name: &str) -> String {
    let kept = name.chars().filter(char::is_ascii_alphanumeric);
    kept.map(|c| c.to_ascii_lowercase()).collect()
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        // Envoy writes null for a missing value, and a missing upstream host carries information.
        Value::Null => Some(String::new()),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}
