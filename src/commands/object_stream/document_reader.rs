//! Divides input into documents, without holding more than one of them: JSON lines, other JSON, or YAML, as the first line tells.

use std::collections::VecDeque;
use std::io::{self, BufRead};

use super::super::lines::{Line, next_line};
use super::yaml_lists::{ListSplitter, is_list};
use crate::limits;

/// A document, with the line on which it begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Document {
    /// JSON, or what is meant to be.
    Json(u64, Vec<u8>),
    /// YAML, or what is meant to be.
    Yaml(u64, Vec<u8>),
    /// A document with more bytes than the given number; it was dropped.
    TooLong(u64, usize),
}

/// The form of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One document per line: a malformed one does not affect the next.
    JsonLines,
    /// Documents of any number of lines.
    Json,
    /// Documents between lines with three dashes.
    Yaml,
}

/// Divides input into documents.
pub(super) struct DocumentReader<R> {
    input: R,
    /// The number of lines read.
    line: u64,
    /// Known after the first line that is not blank.
    form: Option<Form>,
    /// What was read and belongs to the next document.
    unread: Option<Vec<u8>>,
    /// Documents that are complete.
    ready: VecDeque<Document>,
}

impl<R: BufRead> DocumentReader<R> {
    pub(super) fn new(input: R) -> DocumentReader<R> {
        DocumentReader { input, line: 0, form: None, unread: None, ready: VecDeque::new() }
    }

    /// The next document; `None` at the end of the input.
    pub(super) fn next(&mut self) -> io::Result<Option<Document>> {
        loop {
            if let Some(document) = self.ready.pop_front() {
                return Ok(Some(document));
            }
            let is_end = match self.form {
                None => self.detect_form()?,
                Some(Form::JsonLines) => self.read_line_of_json()?,
                Some(Form::Json) => self.read_json()?,
                Some(Form::Yaml) => self.read_yaml()?,
            };
            if is_end && self.ready.is_empty() {
                return Ok(None);
            }
        }
    }

    fn next_line(&mut self) -> io::Result<Line> {
        if let Some(line) = self.unread.take() {
            return Ok(Line::Complete(line));
        }
        self.line += 1;
        next_line(&mut self.input, limits::STREAM_DOCUMENT_BYTES)
    }

    /// Each step returns whether the input has ended.
    fn detect_form(&mut self) -> io::Result<bool> {
        match self.next_line()? {
            Line::End => return Ok(true),
            Line::TooLong => self.refuse(self.line, limits::STREAM_DOCUMENT_BYTES),
            Line::Complete(line) => {
                let text = line.trim_ascii();
                self.form = match text.first() {
                    None => return Ok(false),
                    Some(b'{') if JsonScanner::default().scan(text) == Some(text.len()) => {
                        Some(Form::JsonLines)
                    }
                    Some(b'{') => Some(Form::Json),
                    Some(_) => Some(Form::Yaml),
                };
                self.unread = Some(line);
            }
        }
        Ok(false)
    }

    fn refuse(&mut self, line: u64, max_bytes: usize) {
        self.ready.push_back(Document::TooLong(line, max_bytes));
    }

    fn read_line_of_json(&mut self) -> io::Result<bool> {
        match self.next_line()? {
            Line::End => return Ok(true),
            Line::TooLong => self.refuse(self.line, limits::STREAM_DOCUMENT_BYTES),
            Line::Complete(line) if line.trim_ascii().is_empty() => {}
            Line::Complete(line) => self.ready.push_back(Document::Json(self.line, line)),
        }
        Ok(false)
    }

    /// Reads lines until every bracket is closed.
    fn read_json(&mut self) -> io::Result<bool> {
        let (mut scanner, mut text, mut first_line) = (JsonScanner::default(), Vec::new(), self.line);
        let mut is_too_long = false;
        loop {
            let line = match self.next_line()? {
                Line::End => break,
                // It has no brackets that could be counted; the rest of the document is malformed in any case.
                Line::TooLong => {
                    is_too_long = true;
                    continue;
                }
                Line::Complete(line) => line,
            };
            if text.is_empty() && !is_too_long {
                if matches!(line.trim_ascii(), b"" | b"---") {
                    continue;
                }
                first_line = self.line;
            }
            let end = scanner.scan(&line);
            text.extend_from_slice(line.get(..end.unwrap_or(line.len())).unwrap_or_default());
            text.push(b'\n');
            if text.len() > limits::STREAM_DOCUMENT_BYTES {
                is_too_long = true;
            }
            if is_too_long {
                text = Vec::new();
            }
            if let Some(end) = end {
                self.unread =
                    line.get(end..).filter(|rest| !rest.trim_ascii().is_empty()).map(<[u8]>::to_vec);
                break;
            }
        }
        match (is_too_long, text.is_empty()) {
            (true, _) => self.refuse(first_line, limits::STREAM_DOCUMENT_BYTES),
            (false, true) => return Ok(true),
            (false, false) => self.ready.push_back(Document::Json(first_line, text)),
        }
        Ok(false)
    }

    /// Reads lines until three dashes.
    fn read_yaml(&mut self) -> io::Result<bool> {
        let (mut text, mut first_line, mut is_end) = (Vec::new(), None, false);
        let (mut splitter, mut is_too_long) = (None::<ListSplitter>, false);
        loop {
            let line = match self.next_line()? {
                Line::End => {
                    is_end = true;
                    break;
                }
                Line::TooLong => {
                    is_too_long = true;
                    continue;
                }
                Line::Complete(line) => line,
            };
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if let Some(rest) = line.strip_prefix(b"---")
                && matches!(rest.first(), None | Some(b' ' | b'\t'))
            {
                if first_line.is_some() {
                    self.unread = Some(line.to_vec());
                    break;
                }
                first_line = Some(self.line);
                text.extend_from_slice(rest.trim_ascii_start());
                text.push(b'\n');
                continue;
            }
            let first_line = *first_line.get_or_insert(self.line);
            if let Some(splitter) = &mut splitter {
                let item = splitter.push(line);
                is_too_long |= splitter.held() > limits::STREAM_YAML_BYTES;
                self.ready.extend(item.map(|item| Document::Yaml(first_line, item)));
                continue;
            }
            is_too_long |= text.len() + line.len() >= limits::STREAM_YAML_BYTES;
            if is_too_long {
                text = Vec::new();
                continue;
            }
            let was_short = text.len() <= limits::STREAM_YAML_LIST_BYTES;
            text.extend_from_slice(line);
            text.push(b'\n');
            // Looked at once: the first item of a list comes early.
            if was_short && text.len() > limits::STREAM_YAML_LIST_BYTES && is_list(&text) {
                let mut lines = ListSplitter::default();
                let beginning = text.strip_suffix(b"\n").unwrap_or(&text);
                let items = beginning.split(|byte| *byte == b'\n').filter_map(|line| lines.push(line));
                self.ready.extend(items.map(|item| Document::Yaml(first_line, item)));
                (text, splitter) = (Vec::new(), Some(lines));
            }
        }
        let first_line = first_line.unwrap_or(self.line);
        match splitter {
            Some(mut splitter) => {
                let last = splitter.take();
                self.ready.extend(last.map(|item| Document::Yaml(first_line, item)));
            }
            None if is_too_long => {}
            None if !text.trim_ascii().is_empty() => self.ready.push_back(Document::Yaml(first_line, text)),
            None => {}
        }
        if is_too_long {
            self.refuse(first_line, limits::STREAM_YAML_BYTES);
        }
        Ok(is_end)
    }
}

/// Finds the end of a JSON value.
#[derive(Default)]
struct JsonScanner {
    depth: usize,
    is_in_text: bool,
    is_escaped: bool,
}

impl JsonScanner {
    /// Continues with these bytes of a line, and returns the offset after the last bracket if that is among them.
    fn scan(&mut self, bytes: &[u8]) -> Option<usize> {
        // No text continues on the next line: a document with an open quote is malformed up to there, and not to its end.
        self.is_in_text = false;
        self.is_escaped = false;
        for (index, byte) in bytes.iter().enumerate() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_in_text => self.is_escaped = true,
                b'"' => self.is_in_text = !self.is_in_text,
                _ if self.is_in_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(index + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(text: &str) -> Vec<Document> {
        // Short texts in many pieces, long ones in few.
        let capacity = if text.len() > 1_000 { 64 << 10 } else { 7 };
        let mut reader = DocumentReader::new(io::BufReader::with_capacity(capacity, text.as_bytes()));
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    fn json(line: u64, text: &str) -> Document {
        Document::Json(line, text.as_bytes().to_vec())
    }

    fn yaml(line: u64, text: &str) -> Document {
        Document::Yaml(line, text.as_bytes().to_vec())
    }

    #[test]
    fn complete_first_line_means_json_lines() {
        let text = "\n{\"a\":\"}\"}\n{\"b\":\n\n  {\"c\":1}  \r\n";
        assert_eq!(
            documents(text),
            [json(2, "{\"a\":\"}\"}"), json(3, "{\"b\":"), json(5, "  {\"c\":1}  \r")]
        );
    }

    #[test]
    fn json_documents_end_with_their_last_bracket() {
        let text = "{\n  \"a\": \"{\\\"\"\n}\n{\"b\": [1,\n2]}{\"c\": 3}\n---\n{\"d\":";
        assert_eq!(
            documents(text),
            [
                json(1, "{\n  \"a\": \"{\\\"\"\n}\n"),
                json(4, "{\"b\": [1,\n2]}\n"),
                json(5, "{\"c\": 3}\n"),
                json(7, "{\"d\":\n"),
            ]
        );
    }

    #[test]
    fn yaml_documents_are_separated_by_dashes() {
        let text = "# comment\n---\na: 1\n---\n---  # b\r\nb: |\r\n  ----\n--- {c: 1}\n";
        let documents = documents(text);
        assert_eq!(
            documents,
            [
                yaml(1, "# comment\n"),
                yaml(2, "\na: 1\n"),
                yaml(5, "# b\nb: |\n  ----\n"),
                yaml(8, "{c: 1}\n")
            ]
        );
    }

    #[test]
    fn long_documents_are_dropped() {
        let long = "x".repeat(limits::STREAM_DOCUMENT_BYTES);
        let dropped = Document::TooLong;
        let max = limits::STREAM_DOCUMENT_BYTES;
        assert_eq!(
            documents(&format!("{{}}\n{{\"a\":\"{long}\"}}\n{{}}\n")),
            [json(1, "{}"), dropped(2, max), json(3, "{}")]
        );
        let long = "x: x\n".repeat(limits::STREAM_YAML_BYTES / 5 + 1);
        assert_eq!(
            documents(&format!("a: 1\n---\n{long}---\nb: 1\n")),
            [
                yaml(1, "a: 1\n"),
                dropped(2, limits::STREAM_YAML_BYTES),
                yaml(limits::STREAM_YAML_BYTES as u64 / 5 + 4, "\nb: 1\n")
            ]
        );
    }

    #[test]
    fn long_yaml_list_is_split() {
        let item = "- apiVersion: v1\n  kind: ConfigMap\n";
        let count = limits::STREAM_YAML_BYTES / item.len() + 2;
        let text = format!("apiVersion: v1\nitems:\n{}kind: List\n", item.repeat(count));
        let documents = documents(&text);
        assert_eq!(documents.len(), count);
        assert!(documents.iter().all(|document| *document == yaml(1, "apiVersion: v1\nkind: ConfigMap\n")));
    }
}
