//! Rewrites links in proxied responses: absolute paths of the backend must lead through the proxy, in the `Location` header and
//! in HTML pages.

use std::collections::VecDeque;

use super::url;

/// The inputs of link rewriting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// The path of the proxy on this server, escaped and without a final slash.
    pub prefix: String,
    /// Host and port of the backend.
    pub backend: String,
    /// Host and port of this server as the client named it.
    pub server: String,
}

impl Links {
    /// For a request: `path` is its path, and `rest` the part after the proxy's name.
    pub fn new(path: &str, rest: &str, backend: String, server: &str) -> Links {
        let path = path.trim_end_matches('/');
        let prefix = path.strip_suffix(rest).unwrap_or(path).trim_end_matches('/');
        // Without duplicate leading slashes, because the prefix is written once per link.
        Links { prefix: url::clean(&url::escape_path(prefix)), backend, server: server.to_owned() }
    }

    /// The path on this server for an escaped path of the backend.
    pub fn proxied_path(&self, path: &str) -> String {
        let joined = format!("{}/{path}", self.prefix);
        url::clean(&joined)
    }

    /// The rewritten link; `None` if it needs no change.
    pub fn rewrite(&self, link: &str) -> Option<String> {
        let (host, path, suffix) = split(link)?;
        let is_foreign = !host.is_empty() && host != self.backend && host != self.server;
        if is_foreign || !path.starts_with('/') {
            return None;
        }
        let path = if path.starts_with(&self.prefix) { path.to_owned() } else { self.proxied_path(path) };
        // A link that already names this server keeps the host: the scheme may matter.
        let origin = if host == self.server && !host.is_empty() {
            link.split_once(host).map(|(before, _)| format!("{before}{host}")).unwrap_or_default()
        } else {
            String::new()
        };
        let new = format!("{origin}{path}{suffix}");
        (new != link).then_some(new)
    }

    /// Rewrites the links of a page. A page that would grow beyond `max_bytes` stays unchanged.
    pub fn rewrite_page(&self, page: &[u8], max_bytes: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(page.len() + page.len() / 16);
        let mut copied = 0;
        let mut reader = Reader { page, position: 0, links: VecDeque::new() };
        while let Some((start, end)) = reader.next_link() {
            let link = std::str::from_utf8(&page[start..end]).ok();
            if let Some(new) = link.and_then(|link| self.rewrite(link.trim())) {
                out.extend_from_slice(&page[copied..start]);
                out.extend_from_slice(new.as_bytes());
                copied = end;
            }
            if out.len() > max_bytes {
                return page.to_vec();
            }
        }
        out.extend_from_slice(&page[copied..]);
        out
    }
}

/// Host, path, and the rest. `None` for other links, such as `mailto:`.
fn split(link: &str) -> Option<(&str, &str, &str)> {
    let end = link.find(['?', '#']).unwrap_or(link.len());
    let (before, tail) = link.split_at(end);
    let after_scheme = match before.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => rest.starts_with("//").then_some(rest)?,
        _ => before,
    };
    let Some(rest) = after_scheme.strip_prefix("//") else { return Some(("", after_scheme, tail)) };
    let (host, path) = rest.find('/').map_or((rest, ""), |index| rest.split_at(index));
    Some((host, path, tail))
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Whether an attribute of an element contains a link.
fn is_link(element: &str, attribute: &str) -> bool {
    let attributes: &[&str] = match element {
        "a" | "area" | "base" | "link" => &["href"],
        "applet" => &["codebase"],
        "audio" | "embed" | "script" | "source" => &["src"],
        "blockquote" | "del" | "ins" | "q" => &["cite"],
        "body" => &["background"],
        "button" => &["formaction"],
        "command" => &["icon"],
        "form" => &["action"],
        "frame" | "iframe" => &["longdesc", "src"],
        "head" => &["profile"],
        "html" => &["manifest"],
        "img" => &["longdesc", "src", "usemap"],
        "input" => &["src", "usemap", "formaction"],
        "object" => &["classid", "codebase", "data", "usemap"],
        "video" => &["poster", "src"],
        _ => &[],
    };
    attributes.contains(&attribute)
}

/// Elements whose content is raw text.
fn is_raw_text(element: &str) -> bool {
    matches!(element, "script" | "style" | "textarea" | "title" | "iframe" | "noembed" | "noframes" | "xmp")
}

/// Scans a page. Every step moves forward, so the cost is linear.
struct Reader<'a> {
    page: &'a [u8],
    position: usize,
    /// The unread links of the last tag.
    links: VecDeque<(usize, usize)>,
}

impl Reader<'_> {
    /// The next link's start and end.
    fn next_link(&mut self) -> Option<(usize, usize)> {
        while self.links.is_empty() {
            let open = self.find(b"<", self.position)?;
            self.position = open + 1;
            if self.page[self.position..].starts_with(b"!--") {
                self.position = self.find(b"-->", self.position + 3)? + 3;
                continue;
            }
            let name = self.word(self.position);
            if name.is_empty() {
                continue;
            }
            self.position += name.len();
            self.scan_attributes(&name);
            if is_raw_text(&name) {
                self.skip_raw_text(&name);
            }
        }
        self.links.pop_front()
    }

    /// Scans the attributes of a tag and keeps those with links.
    fn scan_attributes(&mut self, element: &str) {
        while let Some(byte) = self.page.get(self.position) {
            match byte {
                b'>' => {
                    self.position += 1;
                    return;
                }
                byte if byte.is_ascii_whitespace() || *byte == b'/' => self.position += 1,
                _ => {
                    let name = self.attribute_name();
                    let value = self.attribute_value();
                    self.links.extend(value.filter(|_| is_link(element, &name)));
                }
            }
        }
    }

    fn attribute_name(&mut self) -> String {
        let start = self.position;
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"/>=".contains(byte);
        let length = self.page[start..].iter().position(is_end).unwrap_or(self.page.len() - start);
        // At least one byte, which begins an attribute.
        self.position = start + length.max(1);
        String::from_utf8_lossy(&self.page[start..self.position]).to_ascii_lowercase()
    }

    fn attribute_value(&mut self) -> Option<(usize, usize)> {
        let mut index = self.skip_space(self.position);
        if self.page.get(index) != Some(&b'=') {
            return None;
        }
        index = self.skip_space(index + 1);
        let quote = self.page.get(index).copied().filter(|byte| matches!(byte, b'"' | b'\''));
        let start = index + usize::from(quote.is_some());
        let is_end = |byte: &u8| match quote {
            Some(quote) => *byte == quote,
            None => byte.is_ascii_whitespace() || *byte == b'>',
        };
        let rest = self.page.get(start..).unwrap_or_default();
        let end = start + rest.iter().position(is_end).unwrap_or(rest.len());
        self.position = (end + usize::from(quote.is_some())).min(self.page.len());
        Some((start, end))
    }

    fn skip_space(&self, position: usize) -> usize {
        let rest = self.page.get(position..).unwrap_or_default();
        position + rest.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(rest.len())
    }

    fn skip_raw_text(&mut self, element: &str) {
        let mut from = self.position;
        while let Some(close) = self.find(b"</", from) {
            if self.word(close + 2) == element {
                self.position = close;
                return;
            }
            from = close + 2;
        }
        self.position = self.page.len();
    }

    fn word(&self, position: usize) -> String {
        let rest = self.page.get(position..).unwrap_or_default();
        let length = rest.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let is_name = rest.first().is_some_and(u8::is_ascii_alphabetic);
        let word = if is_name { &rest[..length] } else { &[] };
        String::from_utf8_lossy(word).to_ascii_lowercase()
    }

    fn find(&self, needle: &[u8], from: usize) -> Option<usize> {
        memchr::memmem::find(self.page.get(from..)?, needle).map(|offset| from + offset)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn links() -> Links {
        let path = "/api/v1/namespaces/n/services/s/proxy/a/";
        Links::new(path, "a", "10.0.0.1:80".to_owned(), "here:6443")
    }

    #[test]
    fn links_are_rewritten_to_the_proxy_path() {
        let links = links();
        assert_eq!(links.prefix, "/api/v1/namespaces/n/services/s/proxy");
        assert_eq!(links.proxied_path("/a/"), "/api/v1/namespaces/n/services/s/proxy/a/");
        let prefix = links.prefix.clone();
        for (link, expected) in [
            ("/x/y?q=/z#f", Some(format!("{prefix}/x/y?q=/z#f"))),
            ("/x/", Some(format!("{prefix}/x/"))),
            ("http://10.0.0.1:80/x", Some(format!("{prefix}/x"))),
            ("https://here:6443/x", Some(format!("https://here:6443{prefix}/x"))),
            ("http://elsewhere/x", None),
            ("//elsewhere/x", None),
            ("x/y", None),
            ("?q", None),
            ("#f", None),
            ("mailto:a@b", None),
            ("", None),
        ] {
            assert_eq!(links.rewrite(link), expected, "{link}");
        }
        assert_eq!(links.rewrite(&format!("{prefix}/x")), None, "already rewritten");
    }

    #[test]
    fn page_rewrite_changes_only_links() {
        let links = links();
        let prefix = &links.prefix;
        let page = "<!-- <a href=\"/c\"> --><HTML><A class=x HREF='/a'>1 < 2</A><img usemap=\"/m\" src=/i><p href=\"/p\">\
            <script src=\"/s.js\">if (a<b) '<a href=\"/no\">'</script><a href=\"rel\"><form action = \"/f\" /></html>";
        let expected = format!(
            "<!-- <a href=\"/c\"> --><HTML><A class=x HREF='{prefix}/a'>1 < 2</A><img usemap=\"{prefix}/m\" src={prefix}/i><p href=\"/p\">\
             <script src=\"{prefix}/s.js\">if (a<b) '<a href=\"/no\">'</script><a href=\"rel\">\
             <form action = \"{prefix}/f\" /></html>"
        );
        assert_eq!(String::from_utf8(links.rewrite_page(page.as_bytes(), 1 << 20)).unwrap(), expected);
    }

    #[test]
    fn page_that_would_exceed_the_limit_stays_unchanged() {
        let page = "<a href=/ ".to_owned() + &"href=/ ".repeat(10_000) + ">";
        assert!(links().rewrite_page(page.as_bytes(), usize::MAX).len() > 2 * page.len());
        assert_eq!(links().rewrite_page(page.as_bytes(), 2 * page.len()), page.as_bytes());
        let slashes = Links::new(&("/".repeat(50_000) + "api/x/proxy/y"), "y", "h".to_owned(), "here");
        assert_eq!(slashes.prefix, "/api/x/proxy");
    }

    proptest! {
        #[test]
        fn page_without_absolute_links_stays_unchanged(page in "(<|>|a|/|=|\"|'| |href|<!--|-->|script|</|é){0,40}") {
            let rewritten = links().rewrite_page(page.as_bytes(), 1 << 20);
            if !page.contains("/") {
                prop_assert_eq!(rewritten, page.as_bytes());
            }
        }
    }
}
