//! Normalization of request paths, as by Envoy in front of Headgate.

/// Returns the elements of a path without its query, normalized: `.` and `..` are resolved,
/// slashes merged, and unreserved characters decoded.
pub(crate) fn normalized(path: &str) -> Vec<String> {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut elements: Vec<String> = Vec::new();
    let mut is_folder = true;
    for element in path.trim_start_matches('/').split('/') {
        let element = decoded(element);
        is_folder = matches!(&*element, "" | "." | "..");
        match &*element {
            "" | "." => {}
            ".." => drop(elements.pop()),
            _ => elements.push(element),
        }
    }
    if is_folder {
        elements.push(String::new());
    }
    elements
}

/// Decodes the percent-encoded characters that normalization decodes, which are the unreserved ones
/// (RFC 3986, section 6.2.2.2).
fn decoded(element: &str) -> String {
    let mut decoded = String::new();
    let mut rest = element;
    while let Some((before, after)) = rest.split_once('%') {
        decoded.push_str(before);
        let code = after
            .get(..2)
            .and_then(|code| u8::from_str_radix(code, 16).ok());
        match code.map(char::from) {
            Some(c) if c.is_ascii_alphanumeric() || "-._~".contains(c) => {
                decoded.push(c);
                rest = &after[2..];
            }
            _ => {
                decoded.push('%');
                rest = after;
            }
        }
    }
    decoded + rest
}
