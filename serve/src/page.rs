//! The page at `/`: the served model, the paths, and a form for a conversation.

use axum::http::{HeaderName, header};
use axum::response::{IntoResponse as _, Response};

/// The page; its script asks the server for everything that it shows.
const PAGE: &str = include_str!("page.html");
/// Rights of the page: requests to this server alone, nothing from elsewhere, and in no frame.
const RIGHTS: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Returns the page.
pub(crate) async fn page() -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, RIGHTS),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, PAGE).into_response()
}

#[cfg(test)]
mod tests {
    use super::PAGE;

    #[test]
    fn the_page_takes_nothing_from_elsewhere_and_makes_no_html_of_texts() {
        for word in [
            "http://",
            "https://",
            "src=",
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
        ] {
            assert!(!PAGE.contains(word), "the page has `{word}`");
        }
        assert!(PAGE.contains("textContent") && PAGE.contains("/v1/chat/completions"));
    }
}
