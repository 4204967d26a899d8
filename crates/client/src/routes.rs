//! The routes to other servers: which proxies are on them.

mod connect;
mod environment;
mod socks;

use std::sync::Arc;

use hyper::Request;
use hyper::header::{HeaderValue, PROXY_AUTHORIZATION};
use pilothouse_types::host_port::HostPort;

pub use self::environment::ProxyEnvironment;
use crate::client_tls::TlsPeer;
use crate::egress::{Egress, EgressSelector, TunnelDialer};
use crate::kubeconfig::Proxy;
use crate::socket::Socket;

/// What decides about the routes to other servers. Cheap to clone; by default all are direct.
#[derive(Clone, Default)]
pub struct Routes {
    /// The proxies of the egress selector. They also carry the connections to the other proxies.
    pub egress: EgressSelector,
    /// The proxies of the environment, for requests that are no upgrades.
    pub environment: ProxyEnvironment,
}

/// The route to one server. By default it is direct. Connections are shared only by requests of the same route.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Route {
    /// The proxy of a kubeconfig or of the environment, which is asked for the server.
    pub proxy: Option<ProxyHop>,
    /// The selection of the egress selector that the connection falls under, to the proxy as well; `None` if it is made directly.
    pub egress: Option<Egress>,
}

/// A proxy of a kubeconfig or of the environment.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ProxyHop {
    /// The proxy.
    pub proxy: Proxy,
    /// TLS with it, should it want that.
    pub tls: Option<TlsPeer>,
}

impl Routes {
    /// Those of the environment, without an egress selector. The error names the variable that cannot be used.
    pub fn from_env() -> Result<Routes, String> {
        let environment = ProxyEnvironment::from_env()?;
        Ok(Routes { egress: EgressSelector::default(), environment })
    }

    /// Connects to a server of the control plane that speaks gRPC. As in the reference, the proxy of the egress selector leads there, or
    /// else that of the environment.
    pub async fn connect_grpc(&self, address: &HostPort) -> Result<Socket, String> {
        let mut route = Route { proxy: None, egress: Some(Egress::ControlPlane) };
        if self.is_direct(&route) {
            route.proxy = self.environment.proxy(true, address).cloned();
        }
        // A proxy passes bytes on, whether they are TLS or not.
        self.connect(&route, Endpoint { address, secure: true }).await
    }

    /// The proxy of the egress selector on a route.
    fn dialer(&self, route: &Route) -> Option<&Arc<TunnelDialer>> {
        self.egress.dialer(route.egress?)
    }

    /// Whether no proxy is on a route.
    pub(crate) fn is_direct(&self, route: &Route) -> bool {
        route.proxy.is_none() && self.dialer(route).is_none()
    }
}

impl Route {
    /// Lets a request without TLS go through an HTTP proxy, which needs the whole URL. Other requests do not change.
    pub(crate) fn address_request<B>(&self, request: &mut Request<B>, secure: bool, authority: &str) {
        let proxy = self.proxy.as_ref().map(|hop| &hop.proxy);
        let Some(proxy) = proxy.filter(|proxy| proxy.is_http() && !secure) else { return };
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        // The authority is that of a URL that was parsed. Without one, the proxy refuses the request.
        if let Ok(uri) = format!("http://{authority}{path}").parse() {
            *request.uri_mut() = uri;
        }
        if let Some(Ok(credentials)) = proxy.header().map(HeaderValue::try_from) {
            request.headers_mut().insert(PROXY_AUTHORIZATION, credentials);
        }
    }
}

/// A server, and whether TLS will be spoken with it.
#[derive(Clone, Copy)]
pub(crate) struct Endpoint<'a> {
    /// Where it is.
    pub(crate) address: &'a HostPort,
    /// Whether TLS will be spoken with it: a proxy then passes on bytes and no requests.
    pub(crate) secure: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_without_tls_names_the_whole_url_to_its_proxy() {
        let uri = |proxy: &str, secure| {
            let proxy = Some(ProxyHop { proxy: Proxy::parse(proxy).unwrap(), tls: None });
            let mut request = Request::get("/a?b").body(()).unwrap();
            Route { proxy, egress: None }.address_request(&mut request, secure, "far.test:80");
            (request.uri().to_string(), request.headers().contains_key(PROXY_AUTHORIZATION))
        };
        assert_eq!(uri("http://p", false), ("http://far.test:80/a?b".to_owned(), false));
        assert_eq!(uri("https://a:b@p", false), ("http://far.test:80/a?b".to_owned(), true));
        assert_eq!(uri("http://a:b@p", true), ("/a?b".to_owned(), false));
        assert_eq!(uri("socks5://a:b@p", false), ("/a?b".to_owned(), false));
    }
}
