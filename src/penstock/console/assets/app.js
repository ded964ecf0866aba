// The page: who looks, which screen, and what is new. Screens are functions of the newest view; whatever they show, the
// page is made so once a second, and when something is clicked.

import { h, patch } from './dom.js'
import { clock } from './format.js'
import { flow } from './flow.js'
import { streams } from './streams.js'
import { lanes } from './lanes.js'
import { letters } from './letters.js'
import { shapes } from './shapes.js'
import { state as stateScreen } from './state.js'
import { log } from './log.js'
import { plots } from './plots.js'
import { audit } from './audit.js'
import { verify } from './verify.js'
import { settle, state } from './parts.js'

const SCREENS = [
  ['flow', 'Flow', flow, 'M2 8h6c6 0 3 8 10 8'],
  ['streams', 'Streams', streams, 'M2 5h16M2 10h16M2 15h16'],
  ['lanes', 'Lanes', lanes, 'M2 10h5l4-5h7M7 10l4 5h7'],
  ['letters', 'Dead letters', letters, 'M2 5h16v10H2zM2 5l8 6 8-6'],
  ['shapes', 'Shapes', shapes, 'M10 2l8 15H2z'],
  ['state', 'State', stateScreen, 'M4 2h9l3 3v13H4zM7 8h6M7 12h6'],
  ['log', 'Log', log, 'M3 4h4v12H3zM8 7h4v9H8zM13 2h4v14h-4z'],
  ['plots', 'Plots', plots, 'M2 16l5-6 4 3 7-9'],
  ['audit', 'Audit', audit, 'M10 2a8 8 0 100 16 8 8 0 000-16zM10 6v5l3 2'],
  ['verify', 'Verify', verify, 'M2 11l4 4 5-9M10 13l2 2 6-10'],
]
const keyOf = (index) => String((index + 1) % 10)

export const app = { session: null, view: null, live: false, toasts: [], asking: null, local: {}, login: {} }
window.penstock = { screens: SCREENS.map(([name]) => name), hush: () => { app.toasts = []; draw() } }

// Asking the server

export async function get(path, fields = {}) {
  const query = new URLSearchParams(fields).toString()
  return answered(await fetch(`/api/${path}${query ? `?${query}` : ''}`, { headers: { accept: 'application/json' } }))
}

export async function post(path, body) {
  const headers = { 'content-type': 'application/json', 'x-penstock-proof': app.session?.proof ?? '' }
  return answered(await fetch(`/api/${path}`, { method: 'POST', headers, body: JSON.stringify(body) }))
}

async function answered(response) {
  const answer = await response.json().catch(() => ({}))
  if (response.ok) return answer
  if (response.status === 401 && app.session) leave()
  const error = answer.error ?? {}
  const failure = new Error([error.message, error.detail, error.remedy].filter(Boolean).join(' ') || `The console answered ${response.status}.`)
  failure.status = response.status
  throw failure
}

export function act(action, fields, { title, text, button, danger = false, ask = null }) {
  app.asking = { action, fields, title, text, button, danger, ask, given: '', busy: false }
  draw()
  document.querySelector('dialog')?.showModal()
}

async function carryOut() {
  const asking = app.asking
  if (!asking || asking.busy || (asking.ask?.needed && !asking.given.trim())) return
  asking.busy = true
  draw()
  const fields = { ...asking.fields }
  if (asking.ask && asking.given.trim()) fields[asking.ask.name] = asking.given.trim()
  try {
    toast((await post('act', { action: asking.action, fields })).said)
  } catch (error) {
    toast(error.message, true)
  }
  if (app.asking === asking) close()
  changed()
}

function close() {
  document.querySelector('dialog')?.close()
  app.asking = null
  draw()
}

// What a screen asks for when it is opened, and again when something was done: kept under a name until then.
export function load(name, path, fields, { every = 0, keep = false } = {}) {
  const key = `${name} ${JSON.stringify(fields ?? {})}`
  const found = (app.local[name] ??= {})
  const isOld = every && found.at && Date.now() - found.at > every
  if (found.key !== key || isOld) {
    if (found.key !== key && !keep) found.value = found.error = undefined
    found.key = key
    found.at = Date.now()
    get(path, fields).then(
      (value) => { if (found.key === key) { found.value = value; found.error = undefined; draw() } },
      (error) => {
        if (found.key !== key) return
        found.error = error.message
        // Busy: asked again in a while, if it is still looked at.
        if (error.status === 503) setTimeout(() => { if (found.key === key) { found.key = undefined; draw() } }, 5000)
        draw()
      },
    )
  }
  return found
}

export function changed() {
  for (const name in app.local) if (app.local[name].key) app.local[name].at = 1
}

export function toast(text, isBad = false) {
  const one = { text, isBad, id: (window.penstock.told = (window.penstock.told ?? 0) + 1) }
  app.toasts.push(one)
  draw()
  setTimeout(() => { app.toasts = app.toasts.filter((each) => each !== one); draw() }, isBad ? 12000 : 6000)
}

// Where we are

export function place() {
  const [screen, ...rest] = location.hash.replace(/^#\/?/, '').split('/')
  return { screen: SCREENS.some(([name]) => name === screen) ? screen : 'flow', rest: rest.map(decodeURIComponent) }
}

export function go(to) {
  if (location.hash !== `#/${to}`) history.pushState(null, '', `#/${to}`)
  app.menu = false
  draw()
  document.getElementById('main')?.focus({ preventScroll: true })
  window.scrollTo(0, 0)
}

// What is new

// A browser has six connections for all pages of a host: a page that nobody sees keeps none of them.
let source = null
let listenedAt = 0
const LOOK_EVERY_MS = 5000
const SILENT_MS = 15000
const recent = (app.recent = [])

function listen() {
  source?.close()
  source = null
  if (document.hidden) return
  listenedAt = Date.now()
  source = new EventSource('/api/events')
  source.addEventListener('view', (event) => {
    const news = JSON.parse(event.data)
    const isNew = news.at !== app.view?.at
    if (news.streams) app.view = news
    else {
      const known = new Map(app.view.streams.map((each) => [each.stream, each]))
      for (const name of news.gone) known.delete(name)
      for (const each of news.changed) known.set(each.stream, each)
      const { changed: _changed, gone: _gone, ...others } = news
      app.view = { ...others, streams: [...known.values()].sort((a, b) => (a.stream < b.stream ? -1 : 1)) }
    }
    app.isCrowded = false
    if (isNew || app.view.is_stale) {
      app.live = !app.view.is_stale
      app.heardAt = Date.now()
    }
    recent.push(app.view)
    if (recent.length > 180) recent.shift()
    if (!document.hidden) draw()
  })
  source.onerror = () => {
    app.live = false
    draw()
    if (source?.readyState === EventSource.CLOSED) look()
  }
}

// Refused to listen: as many listen as may. What there is now is asked for instead, until there is room.
async function look() {
  try {
    const view = await get('view')
    app.isCrowded = true
    app.view = view
    app.heardAt = Date.now()
  } catch { /* said by how old it is */ }
  draw()
  setTimeout(() => app.session && !document.hidden && listen(), LOOK_EVERY_MS)
}

function rest() {
  source?.close()
  source = null
}

// A connection may be dead without an end: what says nothing for so long is taken for it.
setInterval(() => {
  if (!app.session || document.hidden || !app.heardAt || Date.now() - app.heardAt < SILENT_MS) return
  if (app.live) { app.live = false; draw() }
  if (source?.readyState === EventSource.OPEN && Date.now() - listenedAt > SILENT_MS) listen()
}, 1000)

// The page is loaded anew: nothing that was shown to one person is there for the next.
function leave() {
  rest()
  app.session = null
  location.reload()
}

async function begin() {
  const found = /^#(token|code)=([^&]+)/.exec(location.hash)
  if (found) {
    history.replaceState(null, '', '#/flow')
    try {
      app.session = await post('login', { [found[1]]: decodeURIComponent(found[2]) })
    } catch (error) {
      app.login.error = error.message
    }
  }
  if (!app.session) app.session = await get('session').catch(() => null)
  if (app.session) listen()
  draw()
}

// The page

function draw() {
  const root = document.getElementById('app')
  patch(root, app.session ? page() : loginPage())
  settle(root)
  if (app.view) window.penstock.paintedAt ??= performance.now()
  const problems = app.view && !app.view.instance ? '⚠ ' : ''
  document.title = `${problems}${SCREENS.find(([name]) => name === place().screen)[1]} · Penstock`
}
export { draw }

function page() {
  const { screen } = place()
  const current = SCREENS.find(([name]) => name === screen)
  return [
    h('header', { class: 'top', key: 'top' },
      h('button', { class: 'menu', 'aria-label': 'Screens', 'aria-expanded': String(!!app.menu), onclick: () => { app.menu = !app.menu; draw() } }, '☰'),
      h('a', { class: 'brand', href: '#/flow', onclick: (event) => { event.preventDefault(); go('flow') } }, h('img', { src: '/assets/icon.svg', alt: '', width: 24, height: 24 }), 'Penstock'),
      headline(),
      h('div', { class: 'tools' },
        h('button', { class: 'quiet', title: 'Light or dark (t)', 'aria-label': 'Light or dark', onclick: theme }, '◐'),
        who(),
        h('button', { class: 'quiet', onclick: logout }, 'Log out'))),
    h('nav', { class: `screens ${app.menu ? 'open' : ''}`, key: 'nav', 'aria-label': 'Screens' },
      SCREENS.map(([name, title, , drawing], index) =>
        h('a', { key: name, href: `#/${name}`, class: name === screen && 'on', 'aria-current': name === screen && 'page', title: `${title} (${keyOf(index)})`, onclick: (event) => { event.preventDefault(); go(name) } },
          h('svg', { viewBox: '0 0 20 20', 'aria-hidden': 'true' }, h('path', { d: drawing })), h('span', null, title), badge(name))),
      h('div', { class: 'leave', key: 'leave' }, who(), h('button', { class: 'quiet', onclick: logout }, 'Log out'))),
    h('main', { id: 'main', key: `main ${screen}`, tabindex: '-1', 'aria-label': current[1] },
      !app.live && app.view && app.isCrowded && h('p', { class: 'stale', role: 'status' }, 'As many pages follow live as may; this one looks every few seconds until there is room.'),
      app.view?.is_stale && h('p', { class: 'stale', role: 'status' }, `What is shown was seen at ${clock(app.view.at)}.`),
      !app.live && app.view && !app.view.is_stale && !app.isCrowded && h('p', { class: 'stale', role: 'status' }, `The console is not heard of since ${clock(app.heardAt)}; what is shown may be old. Trying again…`),
      app.view?.problem && h('p', { class: 'problem', role: 'alert' }, app.view.problem),
      app.view ? current[2](app.view) : h('p', { class: 'boot' }, 'Waiting for the first numbers…')),
    h('div', { class: 'toasts', role: 'status', 'aria-live': 'polite', key: 'toasts' },
      app.toasts.map((each) => h('p', { key: each.id, 'data-number': each.id, class: each.isBad ? 'bad' : 'good' }, each.text))),
    dialog(),
  ]
}

const who = () => h('span', { class: 'who', title: app.session.read_only ? 'This console only shows' : `You may ${app.session.role}` }, app.session.name, h('small', null, app.session.may_act ? 'act' : 'look'))

function headline() {
  const view = app.view
  if (!view) return h('p', { class: 'headline' })
  const instance = view.instance
  return h('p', { class: 'headline' },
    instance ? state(instance.role, instance.ready ? 'good' : 'bad') : state('not running', 'bad'),
    instance && h('span', { class: 'wide' }, instance.host),
    h('span', { class: `pulse ${app.live ? '' : 'off'}`, title: app.live ? 'Live' : app.view.is_stale || app.isCrowded ? 'Not live' : 'Not connected' }, app.live || app.view.is_stale || app.isCrowded ? clock(view.at) : 'not connected'))
}

function badge(name) {
  const view = app.view
  if (!view) return null
  const paused = view.totals.states.paused ?? 0
  const counts = { streams: paused, letters: view.totals.dead_letters, lanes: view.lanes.filter((lane) => lane.paused || (lane.state && lane.state !== 'running')).length }
  return counts[name] ? h('b', { class: 'badge' }, String(counts[name])) : null
}

function dialog() {
  const asking = app.asking
  return h('dialog', { key: 'dialog', onclose: () => { if (app.asking) { app.asking = null; draw() } }, 'aria-labelledby': 'asked' },
    asking && h('div', { class: 'ask' },
      h('h2', { id: 'asked' }, asking.title),
      h('p', null, asking.text),
      asking.ask && h('label', null, asking.ask.label, h('input', { name: asking.ask.name, placeholder: asking.ask.example, autocomplete: 'off', maxlength: 200, oninput: (event) => { asking.given = event.target.value; draw() }, onkeydown: (event) => { if (event.key === 'Enter') carryOut() } })),
      h('div', { class: 'buttons' },
        h('button', { class: 'quiet', onclick: close }, 'Cancel'),
        h('button', { class: asking.danger ? 'danger' : 'primary', disabled: asking.busy || (asking.ask?.needed && !asking.given.trim()), 'data-do': asking.action, onclick: carryOut }, asking.busy ? 'Working…' : asking.button))))
}

function loginPage() {
  const login = app.login
  const send = async () => {
    const [token, name, password] = ['token', 'name', 'password'].map((field) => document.querySelector(`[name=${field}]`)?.value.trim())
    try {
      app.session = await post('login', login.byName ? { name, password } : { token })
      login.error = undefined
      listen()
    } catch (error) {
      login.error = error.message
    }
    draw()
  }
  const onkeydown = (event) => { if (event.key === 'Enter') send() }
  return h('main', { class: 'login', id: 'main', key: 'login', tabindex: '-1' },
    h('img', { src: '/assets/icon.svg', alt: '', width: 48, height: 48 }),
    h('h1', null, 'Penstock'),
    h('p', null, login.byName ? 'Who are you?' : ['The token of this pipeline; ', h('code', null, 'penstock console'), ' prints a link that has it.']),
    login.byName
      ? [h('label', { key: 'name' }, 'Name', h('input', { name: 'name', autocomplete: 'username', onkeydown })), h('label', { key: 'password' }, 'Password', h('input', { name: 'password', type: 'password', autocomplete: 'current-password', onkeydown }))]
      : h('label', { key: 'token' }, 'Token', h('input', { name: 'token', type: 'password', autocomplete: 'off', onkeydown })),
    login.error && h('p', { class: 'problem', role: 'alert' }, login.error),
    h('button', { class: 'primary', onclick: send }, 'Log in'),
    h('button', { class: 'quiet', onclick: () => { login.byName = !login.byName; draw() } }, login.byName ? 'By a token instead' : 'By name and password instead'))
}

async function logout() {
  try {
    await post('logout', {})
    leave()
  } catch (error) {
    toast(error.message, true)
  }
}

function theme() {
  const isDark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches
  choose(isDark ? 'light' : 'dark')
}

function choose(name) {
  document.documentElement.dataset.theme = name
  try { localStorage.setItem('penstock-theme', name) } catch { /* a private window */ }
}

addEventListener('popstate', draw)
addEventListener('hashchange', () => (/^#(token|code)=/.test(location.hash) ? begin() : draw()))
addEventListener('visibilitychange', () => {
  if (document.hidden) rest()
  else if (app.session) { listen(); draw() }
})
addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || !app.session || app.asking) return
  const screen = SCREENS.find((_, index) => keyOf(index) === event.key)
  if (screen) go(screen[0])
  else if (event.key === 't') theme()
  else if (event.key === '/') { document.querySelector('input[type=search]')?.focus(); event.preventDefault() }
  else if (event.key === 'Escape' && place().rest.length) go(place().screen)
})
try { const kept = localStorage.getItem('penstock-theme'); if (kept) choose(kept) } catch { /* a private window */ }
begin()
