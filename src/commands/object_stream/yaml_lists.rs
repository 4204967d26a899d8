//! Lists as `kubectl get -o yaml` writes them, taken apart line by line: a list of a whole cluster need not fit into memory.

/// What the first item of such a list looks like: one that has an apiVersion is an object of its own.
const FIRST_ITEM: &[u8] = b"\nitems:\n- apiVersion:";

/// Whether the beginning of a document is that of a list of objects.
pub(super) fn is_list(beginning: &[u8]) -> bool {
    let at_start = FIRST_ITEM.get(1..).is_some_and(|pattern| beginning.starts_with(pattern));
    at_start || memchr::memmem::find(beginning, FIRST_ITEM).is_some()
}

/// Takes a list apart. Only the item in progress is held.
#[derive(Default)]
pub(super) struct ListSplitter {
    is_in_items: bool,
    item: Vec<u8>,
}

impl ListSplitter {
    /// Adds a line without its line ending, and returns the item that ended before it, as a document of its own.
    pub(super) fn push(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        if line == b"items:" {
            self.is_in_items = true;
            return None;
        }
        if !self.is_in_items {
            return None;
        }
        let mut complete = None;
        match line {
            [b'-', b' ', ..] => complete = self.take(),
            [b' ', b' ', ..] | [] => {}
            // Another field of the list itself.
            _ => {
                self.is_in_items = false;
                return self.take();
            }
        }
        self.item.extend_from_slice(line.get(2..).unwrap_or_default());
        self.item.push(b'\n');
        complete
    }

    /// The item in progress.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.item)).filter(|item| !item.is_empty())
    }

    /// The bytes of the item in progress.
    pub(super) fn held(&self) -> usize {
        self.item.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_list_is_split_into_its_items() {
        let text = "apiVersion: v1
items:
- apiVersion: v1
  data:
    text: |
      - a
      items:

      b
  kind: ConfigMap
- apiVersion: v1
  kind: Secret
kind: List
metadata:
  resourceVersion: \"\"
";
        assert!(is_list(text.as_bytes()));
        let mut splitter = ListSplitter::default();
        let mut items: Vec<Vec<u8>> =
            text.lines().filter_map(|line| splitter.push(line.as_bytes())).collect();
        items.extend(splitter.take());
        let items: Vec<String> = items.into_iter().map(|item| String::from_utf8(item).unwrap()).collect();
        assert_eq!(
            items,
            [
                "apiVersion: v1\ndata:\n  text: |\n    - a\n    items:\n\n    b\nkind: ConfigMap\n",
                "apiVersion: v1\nkind: Secret\n"
            ]
        );
        assert!(!is_list(b"kind: ConfigMap\ndata:\n  items:\n  - apiVersion: v1\n"));
        assert!(is_list(b"items:\n- apiVersion: v1\n"));
    }
}
