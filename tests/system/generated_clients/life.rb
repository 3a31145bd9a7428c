# Manages a pet, an image, an order and a user with a client that openapi-generator makes for Ruby.
require 'base64'
require 'openapi_client'

host, key, image = ARGV
image = Base64.strict_decode64(image)

def check(holds, what = '')
  raise "wrong: #{what}" unless holds
end

def fails(status)
  yield
rescue OpenapiClient::ApiError => error
  check(error.code == status && JSON.parse(error.response_body)['code'] == status, error)
else
  raise "no #{status}"
end

client = lambda do |&credential|
  configuration = OpenapiClient::Configuration.new do |it|
    it.scheme, it.host = host.split('://')
    it.base_path = '/api/v3'
    it.server_index = nil
    it.server_operation_index = {}
    credential&.call(it)
  end
  OpenapiClient::ApiClient.new(configuration)
end

admin = client.call { |it| it.api_key['api_key'] = key }
pets = OpenapiClient::PetApi.new(admin)
store = OpenapiClient::StoreApi.new(admin)
users = OpenapiClient::UserApi.new(admin)

tags = [OpenapiClient::Tag.new(name: 'ruby')]
pet = pets.add_pet(OpenapiClient::PetInput.new(name: 'Rex', tags: tags))
replaced = pets.update_pet(OpenapiClient::PetReplacement.new(id: pet.id, name: 'Max', tags: tags))
check(replaced.name == 'Max', replaced)
check(pets.update_pet_with_form(pet.id, name: 'Ada').name == 'Ada')
found = pets.find_pets_by_tags(%w[ruby none])
check(found.map(&:id) == [pet.id], found)

# The client would send a file as JSON.
uploaded = pets.upload_file(pet.id, image)
got = pets.get_image(pet.id, uploaded.image_id)
check(File.binread(got.path) == image, 'another image')
pets.delete_image(pet.id, uploaded.image_id)

order = store.place_order(OpenapiClient::OrderInput.new(pet_id: pet.id, quantity: 2))
check(order.quantity == 2 && order.status == 'placed', order)
approved = store.patch_order(order.id, OpenapiClient::OrderPatch.new(status: 'approved'))
check(approved.status == 'approved', approved)
store.delete_order(order.id)
fails(404) { store.get_order_by_id(order.id) }

password = 'correct horse battery staple'
anonymous = OpenapiClient::UserApi.new(client.call)
user = anonymous.create_user(OpenapiClient::UserInput.new(username: 'ruby-Adä', password: password))
# The client returns a text as it is written in JSON.
token = JSON.parse(anonymous.create_session(OpenapiClient::Login.new(username: user.username, password: password)))
own = OpenapiClient::UserApi.new(client.call { |it| it.access_token = token })
changed = own.update_user(user.username, OpenapiClient::UserDetails.new(first_name: 'Ada'))
check(changed.first_name == 'Ada', changed)
own.logout_user
fails(401) { own.get_user_by_name(user.username) }
users.delete_user(user.username)
pets.delete_pet(pet.id)
fails(404) { pets.get_pet_by_id(pet.id) }
