//! SOCKS version 5: asks a proxy for a connection to another server.

use std::io;

use pilothouse_types::host_port::HostPort;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::connect::refusal;
use crate::kubeconfig::Proxy;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const PASSWORD: u8 = 2;
const CONNECT: u8 = 1;
const DOMAIN_NAME: u8 = 3;

/// Asks for a connection. What is read from the stream afterwards comes from the server.
pub(super) async fn open_tunnel<S>(stream: &mut S, server: &HostPort, proxy: &Proxy) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    authenticate(stream, proxy).await?;
    let mut request = vec![VERSION, CONNECT, 0, DOMAIN_NAME, length_byte(&server.host)?];
    request.extend_from_slice(server.host.as_bytes());
    request.extend_from_slice(&server.port.to_be_bytes());
    stream.write_all(&request).await?;
    let mut response = [0; 4];
    stream.read_exact(&mut response).await?;
    if response[1] != 0 {
        return Err(refusal(format!("reason {}", response[1])));
    }
    // The proxy's own address, which is not needed.
    let address = match response[3] {
        1 => 4,
        4 => 16,
        _ => usize::from(stream.read_u8().await?),
    };
    stream.read_exact(&mut vec![0; address + 2]).await.map(drop)
}

async fn authenticate<S>(stream: &mut S, proxy: &Proxy) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let method = if proxy.user.is_some() { PASSWORD } else { NO_AUTHENTICATION };
    stream.write_all(&[VERSION, 1, method]).await?;
    let mut response = [0; 2];
    stream.read_exact(&mut response).await?;
    if response != [VERSION, method] {
        return Err(refusal("it requires another authentication method"));
    }
    let Some((name, password)) = &proxy.user else { return Ok(()) };
    let mut credentials = vec![1, length_byte(name)?];
    credentials.extend_from_slice(name.as_bytes());
    credentials.push(length_byte(password)?);
    credentials.extend_from_slice(password.as_bytes());
    stream.write_all(&credentials).await?;
    stream.read_exact(&mut response).await?;
    if response[1] != 0 {
        return Err(refusal("the name or the password is wrong"));
    }
    Ok(())
}

fn length_byte(text: &str) -> io::Result<u8> {
    u8::try_from(text.len()).map_err(|_| refusal("a name is too long"))
}
