//! Reads whatever others have written, up to a limit.

use std::fs::File;
use std::future::poll_fn;
use std::io::{self, Read as _};
use std::path::Path;
use std::pin::pin;

use hyper::body::Body;

/// Reads a file. One with more bytes is an error.
pub fn read_file(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(io::Error::other(format!("more than {max_bytes} bytes")));
    }
    Ok(bytes)
}

/// Why a body was not read to its end.
#[derive(Debug)]
pub enum BodyError<E> {
    /// It was cut off.
    Cut(E),
    /// It is longer than the limit.
    TooLong,
}

/// Reads a body to its end.
pub async fn read_body<B: Body>(body: B, max_bytes: usize) -> Result<Vec<u8>, BodyError<B::Error>>
where
    B::Data: AsRef<[u8]>,
{
    let mut body = pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let Ok(piece) = frame.map_err(BodyError::Cut)?.into_data() else { continue };
        let piece = piece.as_ref();
        if bytes.len() + piece.len() > max_bytes {
            return Err(BodyError::TooLong);
        }
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::upstream::RequestBody;

    #[test]
    fn file_of_exactly_the_limit_is_read_and_a_longer_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_file(&path, 5).unwrap(), b"12345");
        assert_eq!(read_file(&path, 4).unwrap_err().to_string(), "more than 4 bytes");
    }

    #[actix_rt::test]
    async fn body_of_exactly_the_limit_is_read_and_a_longer_one_is_not() {
        let body = || RequestBody::Whole(Some(Bytes::from_static(b"12345")));
        assert_eq!(read_body(body(), 5).await.unwrap(), b"12345");
        assert!(matches!(read_body(body(), 4).await, Err(BodyError::TooLong)));
    }
}
